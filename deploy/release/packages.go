package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // It registers the format.
	_ "github.com/goreleaser/nfpm/v2/rpm" // It registers the format.
)

// formats are those of packages, with the names that their distributions give files.
var formats = []string{"deb", "rpm"}

// packages writes the packages of an architecture, as deploy/systemd/package/nfpm.yaml says.
func (r release) packages(arch string) error {
	units, err := os.MkdirTemp("", "units-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(units)
	if err := packagedUnits("deploy/systemd", units); err != nil {
		return err
	}
	variables := map[string]string{
		"ARCH":    arch,
		"VERSION": r.version,
		"WORK":    filepath.Join(r.work, "linux-"+arch, "allocator"),
		"UNITS":   units,
	}
	for _, format := range formats {
		if err := r.packageOf(format, variables); err != nil {
			return fmt.Errorf("%s for %s: %w", format, arch, err)
		}
	}
	return nil
}

func (r release) packageOf(format string, variables map[string]string) (err error) {
	config, err := nfpm.ParseFileWithEnvMapping("deploy/systemd/package/nfpm.yaml",
		func(name string) string { return variables[name] })
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = r.at
	for _, c := range info.Contents {
		c.FileInfo.MTime = r.at
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.dir, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return packager.Package(info, f)
}

// packagedUnits writes the units for the program of a package: /usr/local is for what an
// operator put there by hand.
func packagedUnits(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.service"))
	if err != nil || len(files) == 0 {
		return errors.Join(fmt.Errorf("no units in %s", from), err)
	}
	by := []byte("/usr/local/bin/allocator ")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !bytes.Contains(text, by) {
			return fmt.Errorf("%s does not start %s", file, by)
		}
		text = bytes.ReplaceAll(text, by, []byte("/usr/bin/allocator "))
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o644); err != nil {
			return err
		}
	}
	return copyFile(filepath.Join(to, "allocator-doctor.timer"), filepath.Join(from, "allocator-doctor.timer"))
}
