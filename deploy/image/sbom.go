package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The part of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3) that a list of
// modules needs.
type (
	document struct {
		SPDXVersion       string         `json:"spdxVersion"`
		DataLicense       string         `json:"dataLicense"`
		SPDXID            string         `json:"SPDXID"`
		Name              string         `json:"name"`
		DocumentNamespace string         `json:"documentNamespace"`
		CreationInfo      creationInfo   `json:"creationInfo"`
		Packages          []pkg          `json:"packages"`
		Relationships     []relationship `json:"relationships"`
	}
	creationInfo struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	pkg struct {
		SPDXID           string        `json:"SPDXID"`
		Name             string        `json:"name"`
		VersionInfo      string        `json:"versionInfo,omitempty"`
		Purpose          string        `json:"primaryPackagePurpose"`
		DownloadLocation string        `json:"downloadLocation"`
		FilesAnalyzed    bool          `json:"filesAnalyzed"`
		LicenseConcluded string        `json:"licenseConcluded"`
		LicenseDeclared  string        `json:"licenseDeclared"`
		CopyrightText    string        `json:"copyrightText"`
		Checksums        []checksum    `json:"checksums,omitempty"`
		SourceInfo       string        `json:"sourceInfo,omitempty"`
		ExternalRefs     []externalRef `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	externalRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const noAssertion = "NOASSERTION"

// writeSBOM writes which modules a binary was linked from, and by which Go, as the
// linker wrote it into the binary: nothing is guessed from go.mod. Licences of
// others are left open.
func writeSBOM(w io.Writer, id identity) error {
	data, err := os.ReadFile(id.path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	name := path.Base(id.info.Path)
	doc := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT",
		Name:              name + " " + id.version,
		DocumentNamespace: "https://github.com/flakelease/allocator/sbom/" + name + "/" + hex.EncodeToString(sum[:]),
		CreationInfo:      creationInfo{Created: id.created.UTC().Format(time.RFC3339), Creators: []string{"Tool: allocator-deploy-image"}},
	}
	program := module(&debug.Module{Path: id.info.Main.Path, Version: id.version})
	program.SPDXID, program.Name, program.Purpose = "SPDXRef-program", name, "APPLICATION"
	program.Checksums = []checksum{{"SHA256", hex.EncodeToString(sum[:])}}
	program.SourceInfo = "commit " + id.revision
	doc.Packages = append(doc.Packages, program)
	doc.Relationships = append(doc.Relationships, relationship{doc.SPDXID, "DESCRIBES", program.SPDXID})

	deps := slices.Clone(id.info.Deps)
	deps = append(deps, &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(id.info.GoVersion, "go")})
	slices.SortFunc(deps, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	for _, d := range deps {
		p := module(d)
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, relationship{program.SPDXID, "DEPENDS_ON", p.SPDXID})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("write SBOM of %s: %w", name, err)
	}
	return nil
}

var notID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// module returns a module as a package, what replaces it where something does.
func module(m *debug.Module) pkg {
	used := m
	if m.Replace != nil {
		used = m.Replace
	}
	p := pkg{
		SPDXID: "SPDXRef-module-" + notID.ReplaceAllString(m.Path, "-"), Name: used.Path, VersionInfo: used.Version, Purpose: "LIBRARY",
		DownloadLocation: noAssertion, LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
		// Package URL, type golang: the path in lower case is the namespace and name.
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + strings.ToLower(used.Path) + "@" + strings.ReplaceAll(used.Version, "+", "%2B")}},
	}
	if used.Sum != "" {
		p.SourceInfo = "go.sum " + used.Sum
	}
	return p
}
