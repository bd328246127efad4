package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by release builds: -ldflags "-X main.version=v1.2.3".
var version string

// buildVersion is what a binary knows of its origin.
type buildVersion struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func versionOf() buildVersion {
	v := buildVersion{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	format := formatFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		v := versionOf()
		if format.value == "json" {
			return printLine(a.out, v)
		}
		commit := ""
		if v.Commit != "" {
			commit = ", commit " + v.Commit
		}
		_, err := fmt.Fprintf(a.out, "allocator %s (%s, %s/%s%s)\n", v.Version, v.Go, v.OS, v.Arch, commit)
		return err
	}
	return cmd
}
