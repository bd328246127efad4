// Command release makes the files of a release out of programs that are built, and brings
// them to registries:
//
//	release pack --version V --work DIR --out DIR [--time T]
//	release push --dir DIR [--insecure] REGISTRY
//	release evidence --dir DIR --commit C [--chaos FILE] [--sim FILE] [--model FILE] [--bugs FILE]
//	release list --dir DIR
//
// `make release DO=snapshot` fills the directory of work: linux-amd64, linux-arm64 and
// darwin-arm64, each with what deploy/image left there. pack makes archives, packages of
// Debian and RPM, an OCI layout for each image with both architectures in one index, the
// chart, the clients for npm and PyPI, SBOMs, and SHA256SUMS of all. push copies the layouts
// to a registry, where docker and helm find them. evidence states what tests showed of an
// image, on its digest.
//
// All times in all files are that of the commit, so that two builds of a commit with one Go
// toolchain are equal, byte for byte.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

const usage = `usage:
  release pack --version V --work DIR --out DIR [--time RFC3339]
  release push --dir DIR [--insecure] REGISTRY
  release evidence --dir DIR --commit C [--chaos FILE] [--sim FILE] [--model FILE] [--bugs FILE]
  release list --dir DIR`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// semver is a version as Semantic Versioning writes it, without build metadata: registries
// accept no + in a tag.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command\n" + usage)
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version := fs.String("version", "", "version without v, such as 0.1.0")
	work, to := fs.String("work", "", "directory with the programs"), fs.String("out", "", "directory to write")
	at := fs.String("time", "", "time of everything, that of the commit")
	dir := fs.String("dir", "", "directory that pack wrote")
	insecure := fs.Bool("insecure", false, "the registry has no TLS")
	var in inputs
	fs.StringVar(&in.commit, "commit", "", "commit that the tests ran on")
	fs.StringVar(&in.chaos, "chaos", "", "results.json of a run of chaos")
	fs.StringVar(&in.sim, "sim", "", "file of a campaign of the simulation")
	fs.StringVar(&in.model, "model", "", "log of the model")
	fs.StringVar(&in.bugs, "bugs", "", "table of the planted bugs")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	missing := func(what string) error { return fmt.Errorf("%s: %s is missing\n%s", args[0], what, usage) }
	switch args[0] {
	case "pack":
		if *work == "" || *to == "" || fs.NArg() > 0 {
			return missing("--work or --out")
		}
		if !semver.MatchString(*version) {
			return fmt.Errorf("pack: version %q is no semantic version without v: write it like 0.2.0-rc.1",
				*version)
		}
		r := release{version: *version, work: *work, dir: *to}
		if *at != "" {
			var err error
			if r.at, err = time.Parse(time.RFC3339, *at); err != nil {
				return fmt.Errorf("pack: --time: %w", err)
			}
		}
		return r.pack(out)
	case "push":
		if *dir == "" || fs.NArg() != 1 {
			return missing("--dir or the registry")
		}
		return push(*dir, fs.Arg(0), *insecure, out)
	case "evidence":
		if *dir == "" || in.commit == "" || fs.NArg() > 0 {
			return missing("--dir or --commit")
		}
		return evidence(*dir, in, out)
	case "list":
		if *dir == "" || fs.NArg() > 0 {
			return missing("--dir")
		}
		images, err := readImages(*dir)
		if err != nil {
			return err
		}
		for _, i := range images {
			fmt.Fprintf(out, "%s %s\n", i.Name, i.Digest)
		}
		return nil
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}
