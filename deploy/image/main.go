// Command image packs container images without Docker and lists what is in them:
//
//	image pack --file DOCKERFILE --context DIR --binary FILE --tag NAME:TAG -o IMAGE.tar
//	image sbom BINARY > NAME.spdx.json
//	image notice BINARY… > NOTICE
//
// The Dockerfile stays the one description of an image: Docker can build it too.
// Only what an image FROM scratch needs is supported, and every other instruction
// is an error.
//
// The archive is one that `docker load` and containerd read. Its bytes follow from
// the Dockerfile, the files and the build information in the binary (version, commit,
// time of the commit), and from nothing else: not the machine, the user, the
// directory or the time. Two builds of a commit with one Go toolchain are equal.
package main

import (
	"cmp"
	"debug/buildinfo"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"
)

const usage = `usage:
  image pack --file DOCKERFILE --context DIR --binary FILE [--version V] --tag NAME:TAG -o IMAGE.tar
  image sbom [--version V] BINARY > NAME.spdx.json
  image notice BINARY... > NOTICE`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version := fs.String("version", "", "version of the program, if its build information has none")
	file, context := fs.String("file", "", "Dockerfile"), fs.String("context", "", "directory that COPY reads from")
	binary := fs.String("binary", "", "program that gives version, commit, time and architecture")
	tag, to := fs.String("tag", "", "NAME:TAG of the image"), fs.String("o", "", "archive to write")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	complete := args[0] == "sbom" && fs.NArg() == 1 || args[0] == "notice" && fs.NArg() > 0 ||
		args[0] == "pack" && fs.NArg() == 0 && *file != "" && *context != "" && *binary != "" && *tag != "" && *to != ""
	if !complete {
		return fmt.Errorf("%s: unknown command, or a flag or argument is missing or too many\n%s", args[0], usage)
	}
	if args[0] == "notice" {
		var programs []program
		for _, path := range fs.Args() {
			p, err := readProgram(path, *version)
			if err != nil {
				return err
			}
			programs = append(programs, p)
		}
		return writeNotice(out, programs)
	}
	p, err := readProgram(cmp.Or(*binary, fs.Arg(0)), *version)
	if err != nil {
		return err
	}
	if args[0] == "sbom" {
		return writeSBOM(out, p)
	}
	if !p.static {
		return fmt.Errorf("%s is no program for Linux without a C library, which an image from scratch needs: "+
			"build it with GOOS=linux CGO_ENABLED=0", p.path)
	}
	return pack(*file, *context, p, *tag, *to, out)
}

// program is what the build information in a binary says.
type program struct {
	path     string
	info     *debug.BuildInfo
	version  string
	revision string    // commit; "unknown" if it was built outside a repository
	created  time.Time // time of the commit; 1970 if it was built outside a repository
	arch     string
	static   bool // It runs on Linux without a C library.
}

func readProgram(path, version string) (program, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return program{}, err
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	p := program{
		path:     path,
		info:     info,
		version:  cmp.Or(version, info.Main.Version, "(devel)"),
		revision: cmp.Or(set["vcs.revision"], "unknown"),
		arch:     set["GOARCH"],
		static:   set["GOOS"] == "linux" && set["CGO_ENABLED"] == "0",
	}
	if set["vcs.modified"] == "true" {
		p.revision += "-dirty"
	}
	p.created, err = time.Parse(time.RFC3339, cmp.Or(set["vcs.time"], "1970-01-01T00:00:00Z"))
	return p, err
}
