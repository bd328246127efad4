package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// clients writes the packages of the clients for npm and PyPI, as `npm pack` and a build backend of
// Python would: neither is needed, and nothing of theirs runs.
func (r release) clients() error {
	npm, err := npmPackage("clients/typescript", r.version, r.at)
	if err != nil {
		return err
	}
	python, err := pythonVersion(r.version)
	if err != nil {
		return err
	}
	wheel, sdist, err := pythonPackages("clients/python", python, r.at)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.dir, "flakelease-allocator-"+r.version+".tgz"), npm, 0o644),
		os.WriteFile(filepath.Join(r.dir, "flakelease_allocator-"+python+"-py3-none-any.whl"), wheel, 0o644),
		os.WriteFile(filepath.Join(r.dir, "flakelease_allocator-"+python+".tar.gz"), sdist, 0o644),
	)
}

// packTar returns files, by their names in it, as an archive: sorted, and all at one time.
func packTar(files map[string][]byte, at time.Time) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	for _, name := range sortedKeys(files) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: at}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err = errors.Join(w.Close(), z.Close())
	return buf.Bytes(), err
}

// readBelow returns the files in a directory and below it that are wanted, with prefix before their names.
func readBelow(dir, prefix string, wanted func(name string) bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil || !wanted(filepath.ToSlash(name)) {
			return err
		}
		text, err := os.ReadFile(at)
		files[prefix+filepath.ToSlash(name)] = text
		return err
	})
	return files, err
}

// replaceOne replaces the version of a client, which is to be stated once.
func replaceOne(text []byte, line *regexp.Regexp, with string) ([]byte, error) {
	if n := len(line.FindAll(text, -1)); n != 1 {
		return nil, fmt.Errorf("%d lines match %v: want 1", n, line)
	}
	return line.ReplaceAll(text, []byte(with)), nil
}

var (
	npmVersion  = regexp.MustCompile(`(?m)^  "version": "[^"]*"`)
	tomlVersion = regexp.MustCompile(`(?m)^version = "[^"]*"`)
)

// npmPackage returns the tarball of the package in from: what package.json lists, what npm always adds, and LICENSE.
func npmPackage(from, version string, at time.Time) ([]byte, error) {
	about, err := os.ReadFile(filepath.Join(from, "package.json"))
	if err != nil {
		return nil, err
	}
	var listed struct{ Files []string }
	if err := json.Unmarshal(about, &listed); err != nil {
		return nil, err
	}
	files, err := readBelow(from, "package/", func(name string) bool {
		top, _, _ := strings.Cut(name, "/")
		for _, pattern := range append(listed.Files, "package.json", "README.md") {
			if is, err := path.Match(pattern, top); is && err == nil {
				return true
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	if files["package/LICENSE"], err = os.ReadFile("LICENSE"); err != nil {
		return nil, err
	}
	files["package/package.json"], err = replaceOne(about, npmVersion, `  "version": "`+version+`"`)
	if err != nil {
		return nil, fmt.Errorf("%s/package.json: %w", from, err)
	}
	return packTar(files, at)
}

var prerelease = regexp.MustCompile(`^([0-9.]+)-(alpha|beta|rc|snapshot)(?:\.([0-9]+))?$`)

// pythonVersion returns a semantic version as Python writes it (PEP 440).
func pythonVersion(version string) (string, error) {
	if !strings.Contains(version, "-") {
		return version, nil
	}
	m := prerelease.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("version %q has no form in Python: use -alpha.N, -beta.N, -rc.N or -snapshot", version)
	}
	kind := map[string]string{"alpha": "a", "beta": "b", "rc": "rc", "snapshot": ".dev"}[m[2]]
	return m[1] + kind + cmp.Or(m[3], "0"), nil
}

// pythonPackages returns the wheel and the sdist of the package in from.
func pythonPackages(from, version string, at time.Time) (wheel, sdist []byte, err error) {
	about, err := os.ReadFile(filepath.Join(from, "pyproject.toml"))
	if err != nil {
		return nil, nil, err
	}
	if about, err = replaceOne(about, tomlVersion, `version = "`+version+`"`); err != nil {
		return nil, nil, fmt.Errorf("%s/pyproject.toml: %w", from, err)
	}
	readme, err := os.ReadFile(filepath.Join(from, "README.md"))
	if err != nil {
		return nil, nil, err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return nil, nil, err
	}
	metadata, err := pythonMetadata(about, readme)
	if err != nil {
		return nil, nil, err
	}
	isSource := func(name string) bool {
		return strings.HasSuffix(name, ".py") || strings.HasSuffix(name, "/py.typed")
	}
	source, err := readBelow(filepath.Join(from, "src"), "", isSource)
	if err != nil {
		return nil, nil, err
	}
	top := "flakelease_allocator-" + version
	of := map[string][]byte{
		top + "/PKG-INFO":       metadata,
		top + "/pyproject.toml": about,
		top + "/README.md":      readme,
		top + "/LICENSE":        license,
	}
	for name, text := range source {
		of[top+"/src/"+name] = text
	}
	if sdist, err = packTar(of, at); err != nil {
		return nil, nil, err
	}
	info := top + ".dist-info"
	source[info+"/METADATA"], source[info+"/licenses/LICENSE"] = metadata, license
	source[info+"/WHEEL"] = []byte("Wheel-Version: 1.0\nGenerator: allocator\nRoot-Is-Purelib: true\n" +
		"Tag: py3-none-any\n")
	var record strings.Builder
	for _, name := range sortedKeys(source) {
		sum := sha256.Sum256(source[name])
		text := base64.RawURLEncoding.EncodeToString(sum[:])
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, text, len(source[name]))
	}
	fmt.Fprintf(&record, "%s/RECORD,,\n", info)
	source[info+"/RECORD"] = []byte(record.String())
	wheel, err = packZip(source, at)
	return wheel, sdist, err
}

// pythonMetadata returns the core metadata 2.4 of what pyproject.toml says of a project.
func pythonMetadata(about, readme []byte) ([]byte, error) {
	var p struct {
		Project struct {
			Name, Version, Description, License string
			RequiresPython                      string `toml:"requires-python"`
			Keywords, Classifiers               []string
			URLs                                map[string]string
			Dependencies                        []string
		}
	}
	if err := toml.Unmarshal(about, &p); err != nil {
		return nil, err
	}
	of := p.Project
	if len(of.Dependencies) > 0 {
		return nil, errors.New("pyproject.toml names dependencies, which the metadata written here leaves out")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "Metadata-Version: 2.4\nName: %s\nVersion: %s\nSummary: %s\n", of.Name, of.Version, of.Description)
	fmt.Fprintf(&b, "License-Expression: %s\nLicense-File: LICENSE\n", of.License)
	for _, name := range sortedKeys(of.URLs) {
		fmt.Fprintf(&b, "Project-URL: %s, %s\n", name, of.URLs[name])
	}
	fmt.Fprintf(&b, "Keywords: %s\n", strings.Join(of.Keywords, ","))
	for _, c := range of.Classifiers {
		fmt.Fprintf(&b, "Classifier: %s\n", c)
	}
	fmt.Fprintf(&b, "Requires-Python: %s\nDescription-Content-Type: text/markdown\n\n%s", of.RequiresPython, readme)
	return b.Bytes(), nil
}

// packZip returns files as a zip archive: sorted, and all at one time. Zip has no time before 1980.
func packZip(files map[string][]byte, at time.Time) ([]byte, error) {
	if first := time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC); at.Before(first) {
		at = first
	}
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, name := range sortedKeys(files) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(0o644)
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return buf.Bytes(), err
}
