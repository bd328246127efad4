package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// release is what pack makes: its version, the time of its commit, where the programs are
// and where the files go.
type release struct {
	version string
	at      time.Time
	work    string
	dir     string
}

// platforms are those that a release has programs for, as the directories of work are named.
var platforms = []string{"linux-amd64", "linux-arm64", "darwin-arm64"}

// imagesFile has the digests of what push will copy.
const imagesFile = "images.json"

// pack writes all files of the release.
func (r release) pack(out io.Writer) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	for _, platform := range platforms {
		if err := r.archives(platform); err != nil {
			return err
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if err := r.packages(arch); err != nil {
			return err
		}
	}
	images, err := r.images()
	if err != nil {
		return err
	}
	chart, err := r.chart("deploy/helm/allocator")
	if err != nil {
		return err
	}
	images = append(images, chart)
	text, err := json.MarshalIndent(images, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, imagesFile), append(text, '\n'), 0o644); err != nil {
		return err
	}
	if err := errors.Join(r.clients(), r.site(out)); err != nil {
		return err
	}
	for _, i := range images {
		fmt.Fprintf(out, "%-16s %s\n", i.Name, i.Digest)
	}
	return writeSums(r.dir)
}

// archives writes what people unpack by hand on a platform, and the SBOMs beside them.
func (r release) archives(platform string) error {
	goos, arch, _ := strings.Cut(platform, "-")
	from := filepath.Join(r.work, platform, "allocator")
	name := fmt.Sprintf("allocator_%s_%s_%s", r.version, goos, arch)
	files := map[string]string{}
	for _, file := range []string{"allocator", "LICENSE", "NOTICE", "allocator.spdx.json"} {
		files[file] = filepath.Join(from, file)
	}
	if goos == "linux" {
		units, err := filepath.Glob("deploy/systemd/allocator*")
		if err != nil || len(units) == 0 {
			return errors.Join(errors.New("no files in deploy/systemd: run it in the root of the repository"), err)
		}
		for _, unit := range units {
			files["systemd/"+filepath.Base(unit)] = unit
		}
	}
	if err := writeArchive(filepath.Join(r.dir, name+".tar.gz"), files, r.at); err != nil {
		return err
	}
	sbom := filepath.Join(from, "allocator.spdx.json")
	return copyFile(filepath.Join(r.dir, name+".spdx.json"), sbom)
}

// site packs the documents as a site, if `make docs` could build it.
func (r release) site(out io.Writer) error {
	from := filepath.Join(r.work, "site")
	files := map[string]string{}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var name string
			if name, err = filepath.Rel(from, path); err == nil {
				files[filepath.ToSlash(name)] = path
			}
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(out, "no archive of the site: it was not built, which needs Node.js with npm")
		return nil
	}
	if err != nil {
		return err
	}
	return writeArchive(filepath.Join(r.dir, "allocator_"+r.version+"_site.tar.gz"), files, r.at)
}

// writeArchive writes files by their names in the archive, sorted, all at one time and of no
// user. A file is 0755 if its owner may execute it, else 0644.
func writeArchive(to string, files map[string]string, at time.Time) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTar(z, files, at); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return z.Close()
}

func writeTar(to io.Writer, files map[string]string, at time.Time) error {
	w := tar.NewWriter(to)
	for _, name := range sortedKeys(files) {
		if err := writeTarFile(w, name, files[name], at); err != nil {
			return err
		}
	}
	return w.Close()
}

func writeTarFile(w *tar.Writer, name, from string, at time.Time) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	err = w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Mode:     mode,
		Size:     info.Size(),
		ModTime:  at,
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// writeSums writes SHA256SUMS, which `sha256sum --check` reads, of all files of a directory.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "SHA256SUMS" {
			continue
		}
		sum, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
