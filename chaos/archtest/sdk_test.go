package archtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// sdkModules are the modules that a program needs which imports package client
// alone: gRPC and what gRPC needs. Its go.mod has a line for each.
var sdkModules = []string{
	module,
	"golang.org/x/net",
	"golang.org/x/sys",
	"golang.org/x/text",
	"google.golang.org/genproto/googleapis/rpc",
	"google.golang.org/grpc",
	"google.golang.org/protobuf",
}

// noNetwork finds errors of the go command about modules that are not in the
// module cache and cannot be downloaded.
var noNetwork = regexp.MustCompile(`module lookup disabled|dial tcp|no such host|connection refused|i/o timeout|proxyconnect`)

// TestSDKModules: a program that imports package client gets these modules in its
// go.mod, compiles packages of no others, and gets none of etcd, Prometheus,
// memberlist or the configuration.
func TestSDKModules(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/program\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root(t) + "\n",
		"main.go": "package main\n\nimport \"" + module + "/client\"\n\nfunc main() { _, _ = client.New(client.Options{}) }\n",
	} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	run := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil && noNetwork.MatchString(stderr.String()) {
			t.Skipf("modules are neither in the module cache nor can be downloaded: %s", stderr.String())
		}
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
		}
		return out
	}
	run("mod", "tidy")
	var file struct{ Require []struct{ Path string } }
	fatal.If(t, json.Unmarshal(run("mod", "edit", "-json"), &file))
	var got []string
	for _, r := range file.Require {
		got = append(got, r.Path)
	}
	slices.Sort(got)
	if !slices.Equal(got, sdkModules) {
		t.Errorf("go.mod requires %q\nwant %q", got, sdkModules)
	}
	for _, m := range strings.Fields(string(run("list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "."))) {
		if m != "example.com/program" && !slices.Contains(sdkModules, m) {
			t.Errorf("the program compiles packages of %s", m)
		}
	}
}
