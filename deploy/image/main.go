package main

import (
	"cmp"
	"debug/buildinfo"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

const usage = `usage:
  image pack --file DOCKERFILE --context DIR --binary FILE [--version V] --tag NAME:TAG [--tag …] -o FILE.tar
  image sbom [--version V] BINARY > FILE.spdx.json`

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command is given\n%s", usage)
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version := fs.String("version", "", "of the program, where its build information does not say it")
	switch args[0] {
	case "pack":
		var tags stringList
		file, context := fs.String("file", "", "Dockerfile"), fs.String("context", "", "folder that COPY reads from")
		binary, to := fs.String("binary", "", "program whose build information tells version, commit, time and architecture"), fs.String("o", "", "archive to write")
		fs.Var(&tags, "tag", "NAME:TAG for docker load; may be given several times")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if *file == "" || *context == "" || *binary == "" || *to == "" || len(tags) == 0 || fs.NArg() > 0 {
			return fmt.Errorf("pack: something is missing or too much\n%s", usage)
		}
		id, err := identify(*binary, *version)
		if err != nil {
			return err
		}
		return pack(*file, *context, id, tags, *to, out)
	case "sbom":
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if fs.NArg() != 1 {
			return fmt.Errorf("sbom: give one binary\n%s", usage)
		}
		id, err := identify(fs.Arg(0), *version)
		if err != nil {
			return err
		}
		return writeSBOM(out, id)
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}

type stringList []string

func (l *stringList) String() string     { return strings.Join(*l, ",") }
func (l *stringList) Set(s string) error { *l = append(*l, s); return nil }

// identity is what a binary tells of itself.
type identity struct {
	path     string
	info     *debug.BuildInfo
	version  string
	revision string    // commit; "unknown" outside a repository
	created  time.Time // of the commit, or $SOURCE_DATE_EPOCH; 1970 when neither is known
	arch     string
}

// identify reads the build information of a binary.
func identify(path, version string) (identity, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return identity{}, fmt.Errorf("%s: %w", path, err)
	}
	id := identity{path: path, info: info, version: cmp.Or(version, info.Main.Version, "(devel)"), revision: "unknown", created: time.Unix(0, 0).UTC()}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			id.revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				id.revision += "-dirty"
			}
		case "vcs.time":
			if id.created, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return identity{}, fmt.Errorf("%s: time of its commit: %w", path, err)
			}
		case "GOARCH":
			id.arch = s.Value
		case "GOOS":
			if s.Value != "linux" {
				return identity{}, fmt.Errorf("%s is for %s: images hold programs for linux", path, s.Value)
			}
		case "CGO_ENABLED":
			if s.Value != "0" {
				return identity{}, fmt.Errorf("%s was built with cgo: there is no C library in an image from scratch; set CGO_ENABLED=0", path)
			}
		}
	}
	// The convention of reproducible builds: seconds since 1970.
	if v := os.Getenv("SOURCE_DATE_EPOCH"); v != "" {
		var sec int64
		if _, err := fmt.Sscan(v, &sec); err != nil {
			return identity{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q: want seconds since 1970", v)
		}
		id.created = time.Unix(sec, 0).UTC()
	}
	return id, nil
}
