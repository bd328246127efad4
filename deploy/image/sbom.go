package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	noAssertion = "NOASSERTION"
	documentID  = common.ElementID("DOCUMENT")
	programID   = common.ElementID("program")
)

// writeSBOM writes as SPDX 2.3 which modules and which Go a binary was linked
// from, as the linker recorded it in the binary, with the licenses that their files state,
// and the script that is embedded in it.
func writeSBOM(w io.Writer, p program) error {
	data, err := os.ReadFile(p.path)
	if err != nil {
		return err
	}
	l, err := newLicenses()
	if err != nil {
		return err
	}
	name, sum := path.Base(p.info.Path), fmt.Sprintf("%x", sha256.Sum256(data))
	main := modulePackage(programID, "APPLICATION", &debug.Module{Path: p.info.Main.Path, Version: p.version})
	main.PackageName, main.PackageSourceInfo = name, "commit "+p.revision
	main.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
	doc := &spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    documentID,
		DocumentName:      name + " " + p.version,
		DocumentNamespace: "https://github.com/flakelease/allocator/sbom/" + name + "/" + sum,
		CreationInfo: &spdx.CreationInfo{
			Created:  p.created.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "allocator-deploy-image"}},
		},
		Packages:      []*spdx.Package{main},
		Relationships: []*spdx.Relationship{relationship(documentID, common.TypeRelationshipDescribe, programID)},
	}
	for _, m := range p.modules() {
		id := common.ElementID("module-" + notID.ReplaceAllString(m.Path, "-"))
		m = effective(m)
		t, err := l.of(m)
		if err != nil {
			return err
		}
		library := modulePackage(id, "LIBRARY", m)
		library.PackageLicenseDeclared = t.license
		doc.Packages = append(doc.Packages, library)
		doc.Relationships = append(doc.Relationships, relationship(programID, common.TypeRelationshipDependsOn, id))
	}
	if found := uPlot.FindSubmatch(data); found != nil {
		version := string(found[1])
		script := modulePackage("npm-uplot", "LIBRARY", &debug.Module{Path: "uplot", Version: version})
		script.PackageLicenseDeclared = "MIT"
		script.PackageExternalReferences[0].Locator = "pkg:npm/uplot@" + version
		doc.Packages = append(doc.Packages, script)
		doc.Relationships = append(doc.Relationships,
			relationship(programID, common.TypeRelationshipContains, script.PackageSPDXIdentifier))
	}
	return spdxjson.Write(doc, w, spdxjson.Indent(" "))
}

// uPlot is how the one embedded file that others wrote begins: the charts of the pages
// for operators.
var uPlot = regexp.MustCompile(`/\*! https://github\.com/leeoniya/uPlot \(v([0-9.]+)\) \*/`)

// modules returns the modules that the program was linked from, and Go's own, sorted.
func (p program) modules() []*debug.Module {
	modules := append(slices.Clone(p.info.Deps),
		&debug.Module{Path: stdlib, Version: strings.TrimPrefix(p.info.GoVersion, "go")})
	slices.SortFunc(modules, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	return modules
}

// effective returns the module whose code was linked for m.
func effective(m *debug.Module) *debug.Module {
	if m.Replace != nil {
		return m.Replace
	}
	return m
}

var notID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

func modulePackage(id common.ElementID, purpose string, m *debug.Module) *spdx.Package {
	p := &spdx.Package{
		PackageSPDXIdentifier:   id,
		PackageName:             m.Path,
		PackageVersion:          m.Version,
		PrimaryPackagePurpose:   purpose,
		PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: noAssertion,
		PackageLicenseDeclared:  noAssertion,
		PackageCopyrightText:    noAssertion,
		// A package URL of type golang: namespace and name in lower case.
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager,
			RefType:  common.TypePackageManagerPURL,
			Locator:  "pkg:golang/" + strings.ToLower(m.Path) + "@" + strings.ReplaceAll(m.Version, "+", "%2B"),
		}},
	}
	if m.Sum != "" {
		p.PackageSourceInfo = "go.sum " + m.Sum
	}
	return p
}

func relationship(from common.ElementID, kind string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{
		RefA:         common.DocElementID{ElementRefID: from},
		Relationship: kind,
		RefB:         common.DocElementID{ElementRefID: to},
	}
}
