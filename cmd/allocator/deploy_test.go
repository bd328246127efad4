package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/config"
)

// understood reports what is wrong with a command line: a command that does not
// exist, or a flag. Nothing is carried out.
func understood(args []string) error {
	root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if cmd == root {
		return fmt.Errorf("%q names no command", args)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if cmd.Args == nil {
		return cobra.ArbitraryArgs(cmd, cmd.Flags().Args())
	}
	return cmd.Args(cmd, cmd.Flags().Args())
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// valid loads settings and returns them if they break no rule.
func valid(t *testing.T, what, file string, env []string) config.Config {
	t.Helper()
	c, _, err := config.Load(config.Sources{File: file, Env: env})
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return c
}

// enough fails if a supervisor kills a node that is still stopping.
func enough(t *testing.T, what, granted string, c config.Config) {
	t.Helper()
	if d, err := time.ParseDuration(granted); err != nil || d < c.StopWithin() {
		t.Errorf("%s grants %q to stop (%v): a node may take %v, and gives no sid back when it is killed before", what, granted, err, c.StopWithin())
	}
}

// field returns the values of a setting of a unit, in order.
func field(unit, name string) (out []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1) {
		out = append(out, m[1])
	}
	return out
}

func TestSystemdUnit(t *testing.T) {
	const path = "../../deploy/systemd/allocator.service"
	unit := readFile(t, path)
	start := field(unit, "ExecStart")
	if len(start) != 1 {
		t.Fatalf("ExecStart: %q", start)
	}
	if err := understood(strings.Fields(start[0])[1:]); err != nil {
		t.Errorf("ExecStart=%s: %v", start[0], err)
	}
	var env []string
	for _, e := range field(unit, "Environment") {
		env = append(env, strings.Fields(e)...)
	}
	c := valid(t, "the unit with its file", "../../deploy/systemd/allocator.yaml", env)
	enough(t, "TimeoutStopSec", strings.Join(field(unit, "TimeoutStopSec"), " "), c)
	if got := field(unit, "RestartPreventExitStatus"); !slices.Equal(got, []string{fmt.Sprint(exitUsage)}) {
		t.Errorf("RestartPreventExitStatus=%v: a wrong command line ends with %d", got, exitUsage)
	}
	if user := field(unit, "User"); !slices.Equal(user, []string{"allocator"}) || !strings.Contains(readFile(t, "../../deploy/systemd/allocator.sysusers"), "\nu allocator ") {
		t.Errorf("User=%v is not the one that allocator.sysusers makes", user)
	}

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("not run: systemd-analyze is not installed (Debian: apt-get install systemd)")
	}
	self, err := os.Executable() // verify wants a program to be there
	if err != nil {
		t.Fatal(err)
	}
	installed := filepath.Join(t.TempDir(), "allocator.service")
	if err := os.WriteFile(installed, []byte(strings.ReplaceAll(unit, "/usr/local/bin/allocator", self)), 0o600); err != nil {
		t.Fatal(err)
	}
	// 2.0 of 10: a network service that may do no more than it does is at about that.
	for _, args := range [][]string{{"verify", "--man=no", installed}, {"security", "--no-pager", "--offline=true", "--threshold=20", installed}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, "systemd-analyze", args...).CombinedOutput()
		cancel()
		if strings.Contains(string(out), "unrecognized option") {
			t.Logf("not run: systemd-analyze %s: too old", args[0])
			continue
		}
		// verify tells of unknown settings, and ends with 0.
		if err != nil || args[0] == "verify" && strings.Contains(string(out), installed) {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

// substituted resolves ${NAME-default} and ${NAME:-default} to the default.
var substituted = regexp.MustCompile(`\$\{[A-Z_0-9]+:?-([^}]*)\}`)

func TestComposeFile(t *testing.T) {
	text := substituted.ReplaceAllString(readFile(t, "../../deploy/compose.yaml"), "$1")
	file, err := yaml.Parser().Unmarshal([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	nodes, ports := 0, map[string]string{}
	for name, v := range file["services"].(map[string]any) {
		service := v.(map[string]any)
		for _, p := range list(service["ports"]) {
			host := p[:strings.LastIndexByte(p, ':')]
			if other := ports[host]; other != "" || !strings.HasPrefix(host, "127.0.0.1:") {
				t.Errorf("%s: port %s: taken by %q, or open to the world", name, p, other)
			}
			ports[host] = name
		}
		if strings.HasPrefix(name, "etcd-") {
			continue
		}
		nodes++
		if err := understood(list(service["command"])); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if probe := list(service["healthcheck"].(map[string]any)["test"]); len(probe) < 3 || probe[0] != "CMD" || probe[1] != "/allocator" || understood(probe[2:]) != nil {
			t.Errorf("%s: health check %q", name, probe)
		}
		var env []string
		for key, value := range service["environment"].(map[string]any) {
			env = append(env, fmt.Sprintf("%s=%v", key, value))
		}
		enough(t, name+": stop_grace_period", fmt.Sprint(service["stop_grace_period"]), valid(t, name, "", env))
	}
	if nodes != 4 || len(ports) != 9 {
		t.Errorf("looked at %d services and %d ports: the file is another", nodes, len(ports))
	}
}

// list returns a sequence of YAML as strings.
func list(v any) (out []string) {
	all, _ := v.([]any)
	for _, e := range all {
		out = append(out, fmt.Sprint(e))
	}
	return out
}

func TestDockerfileCommands(t *testing.T) {
	text := readFile(t, "../../deploy/Dockerfile")
	probe := regexp.MustCompile(`(?m)^HEALTHCHECK .*CMD \["/allocator", (.*)\]$`).FindStringSubmatch(text)
	if probe == nil {
		t.Fatal("there is no health check")
	}
	if err := understood(strings.Fields(strings.NewReplacer(`"`, "", ",", " ").Replace(probe[1]))); err != nil {
		t.Errorf("HEALTHCHECK %s: %v", probe[1], err)
	}
	if !strings.Contains(text, "\nENTRYPOINT [\"/allocator\"]\n") {
		t.Error("the entry point is not the program")
	}
}

// Every command of the guides exists, with its flags.
func TestGuideCommands(t *testing.T) {
	for _, guide := range []string{"../../docs/BARE-METAL.md"} {
		found := 0
		for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(readFile(t, guide), -1) {
			for _, line := range strings.Split(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
				line, _, _ = strings.Cut(line, " #")
				for _, part := range regexp.MustCompile(`[|&;()]+`).Split(line, -1) {
					args := strings.Fields(regexp.MustCompile(`[<>].*`).ReplaceAllString(part, ""))
					if len(args) > 0 && args[0] == "sudo" {
						args = args[1:]
					}
					if len(args) < 2 || filepath.Base(args[0]) != "allocator" {
						continue
					}
					found++
					if err := understood(args[1:]); err != nil {
						t.Errorf("%s: %s: %v", guide, part, err)
					}
				}
			}
		}
		if found < 5 {
			t.Errorf("%s: %d commands were found", guide, found)
		}
	}
}

func TestUnderstood(t *testing.T) {
	for line, ok := range map[string]bool{
		"serve --config x": true, "health --live": true, "gossip keygen": true, "init --fresh --space x": true,
		"serve --configs x": false, "healthy": false, "": false, "serve now": false, "health --space": false,
	} {
		if err := understood(strings.Fields(line)); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
}
