package main

import (
	"context"
	"errors"
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

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
)

// understood reports what is wrong with a command line: a command that does not
// exist, or a flag. Nothing is carried out.
func understood(args []string) error {
	root := newRoot(&cli.App{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
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
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return fmt.Errorf("%q has no command %q", cmd.Name(), cmd.Flags().Arg(0))
	}
	if cmd.Args == nil {
		return nil
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		return fmt.Errorf("%w: %w", errArgs, err)
	}
	return nil
}

// errArgs is an error that understood wraps: too few arguments, or too many.
var errArgs = errors.New("arguments")

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal.If(t, err)
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

// unitOf returns a unit of deploy/systemd, and the command that it starts, which there is.
func unitOf(t *testing.T, name string) (unit, start string) {
	t.Helper()
	unit = readFile(t, "../../deploy/systemd/"+name+".service")
	commands := field(unit, "ExecStart")
	if len(commands) != 1 {
		t.Fatalf("ExecStart: %q", commands)
	}
	if err := understood(strings.Fields(commands[0])[1:]); err != nil {
		t.Errorf("ExecStart=%s: %v", commands[0], err)
	}
	return unit, commands[0]
}

// staysDown fails unless a wrong command line does not have a unit started again.
func staysDown(t *testing.T, unit string) {
	t.Helper()
	if got := field(unit, "RestartPreventExitStatus"); !slices.Equal(got, []string{fmt.Sprint(cli.ExitUsage)}) {
		t.Errorf("RestartPreventExitStatus=%v: a wrong command line ends with %d", got, cli.ExitUsage)
	}
}

// The units run commands that there are, with files that the guides install.
func TestUnitsOfGuides(t *testing.T) {
	for name, page := range map[string]string{"allocator-doctor": "run-on-machines", "allocator-sql": "id-as-a-column-default"} {
		t.Run(name, func(t *testing.T) {
			unit, start := unitOf(t, name)
			guide := readFile(t, "../../docs/how-to/"+page+".md")
			for _, path := range regexp.MustCompile(`/etc/allocator/\S+`).FindAllString(start, -1) {
				if !strings.Contains(guide, filepath.Base(path)) {
					t.Errorf("the guide does not install %s", path)
				}
			}
			analyzed(t, name+".service", unit)
		})
	}
}

// TestAgentUnit: the unit runs a command that there is, at a socket in the directory that it makes,
// and ends it later than the agent ends by itself.
func TestAgentUnit(t *testing.T) {
	unit, start := unitOf(t, "allocator-agent")
	if dir := field(unit, "RuntimeDirectory"); len(dir) != 1 || !strings.Contains(start, "unix:/run/"+dir[0]+"/") {
		t.Errorf("RuntimeDirectory=%v, and %s", dir, start)
	}
	stop, err := time.ParseDuration(strings.Join(field(unit, "TimeoutStopSec"), " "))
	if drain := config.Default().Drain.Timeout; err != nil || stop <= drain {
		t.Errorf("TimeoutStopSec is %v, %v: the agent may take %v", stop, err, drain)
	}
	staysDown(t, unit)
	if before := field(unit, "ExecStartPre"); len(before) > 0 { // RestartPreventExitStatus is not about it.
		t.Errorf("ExecStartPre=%q: the unit is restarted each second where that fails", before)
	}
	analyzed(t, "allocator-agent.service", unit)
}

func TestSystemdUnit(t *testing.T) {
	unit, _ := unitOf(t, "allocator")
	var env []string
	for _, e := range field(unit, "Environment") {
		env = append(env, strings.Fields(e)...)
	}
	c := valid(t, "the unit with its file", "../../deploy/systemd/allocator.yaml", env)
	enough(t, "TimeoutStopSec", strings.Join(field(unit, "TimeoutStopSec"), " "), c)
	staysDown(t, unit)
	if user := field(unit, "User"); !slices.Equal(user, []string{"allocator"}) || !strings.Contains(readFile(t, "../../deploy/systemd/allocator.sysusers"), "\nu allocator ") {
		t.Errorf("User=%v is not the one that allocator.sysusers makes", user)
	}

	analyzed(t, "allocator.service", unit)
}

// analyzed has systemd look at a unit, which may use Unix sockets: agents listen on them, and so does a member that is alone.
func analyzed(t *testing.T, name, unit string) {
	t.Helper()
	if families := strings.Join(field(unit, "RestrictAddressFamilies"), " "); !strings.Contains(families, "AF_UNIX") {
		t.Errorf("%s: RestrictAddressFamilies=%s: there would be no socket", name, families)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("not run: systemd-analyze is not installed (Debian: apt-get install systemd)")
	}
	self, err := os.Executable() // verify wants a program to be there
	fatal.If(t, err)
	installed := filepath.Join(t.TempDir(), name)
	fatal.If(t, os.WriteFile(installed, []byte(strings.ReplaceAll(unit, "/usr/local/bin/allocator", self)), 0o600))
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

func TestComposeFiles(t *testing.T) {
	for name, want := range map[string]struct{ nodes, ports int }{
		"deploy/compose.yaml":           {5, 9},
		"examples/compose/compose.yaml": {4, 5},
	} {
		t.Run(name, func(t *testing.T) { composeFile(t, "../../"+name, want.nodes, want.ports) })
	}
}

// composeFile checks a file that has so many services of our image, and so many ports.
func composeFile(t *testing.T, path string, wantNodes, wantPorts int) {
	var file map[string]any
	err := yaml.Unmarshal([]byte(substituted.ReplaceAllString(readFile(t, path), "$1")), &file)
	fatal.If(t, err)
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
		for _, v := range list(service["volumes"]) {
			if from, _, _ := strings.Cut(v, ":"); strings.HasPrefix(from, ".") {
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), from)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if service["image"] != "allocator:latest" {
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
	if nodes != wantNodes || len(ports) != wantPorts {
		t.Errorf("looked at %d services and %d ports: the file is another", nodes, len(ports))
	}
	if _, err := exec.LookPath("docker-compose"); err != nil {
		t.Log("not run: docker-compose is not installed (Debian: apt-get install docker-compose)")
	} else if out, err := exec.CommandContext(t.Context(), "docker-compose", "--file", path, "config", "--quiet").CombinedOutput(); err != nil {
		t.Errorf("docker-compose: %v\n%s", err, out) // it needs no daemon
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

// example is a command line that a document shows: all of it in a block, and in
// running text perhaps only the part that is spoken of.
type example struct {
	text  string
	whole bool
}

var (
	spans   = regexp.MustCompile("`([^`\n]+)`")
	before  = regexp.MustCompile(`^(\s*\$ )?\s*(\w+=\S+ +)*(sudo +(-u +\w+ +)?)?(\S*/)?allocator +`) // what may stand before a command
	foreign = regexp.MustCompile(`^[^a-z-]`)                                                         // what no command begins with
)

// examples returns the command lines of our program in a Markdown document.
func examples(doc string) (out []example) {
	for _, block := range pages.Parse(doc) {
		for _, line := range strings.Split(strings.ReplaceAll(block.Text, "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(line, " #")
			for _, part := range regexp.MustCompile(`[|&;()]+`).Split(line, -1) {
				if part = ours(part); part != "" {
					out = append(out, example{part, true})
				}
			}
		}
	}
	for _, span := range spans.FindAllStringSubmatch(doc, -1) {
		if part := ours(span[1]); part != "" {
			out = append(out, example{part, false})
		}
	}
	return out
}

// ours returns what follows the program's name in a command line, or "" if the line
// is of another program or names no command.
func ours(line string) string {
	line = strings.Replace(regexp.MustCompile(`[<>].*`).ReplaceAllString(line, ""), "go run ./cmd/allocator", "allocator", 1)
	name := before.FindString(line)
	rest := strings.TrimSpace(line[len(name):])
	if name == "" || rest == "" || foreign.MatchString(rest) || rest == "--help" {
		return ""
	}
	return rest
}

// filled puts values in the place of what the reader has to fill in.
func filled(text string) (args []string) {
	for _, arg := range strings.Fields(strings.NewReplacer("TIME", "2026-01-01T00:00:00Z", "SID", "3").Replace(text)) {
		arg = strings.Trim(arg, `"'`)
		if arg == "…" {
			if len(args) == 0 || !strings.HasPrefix(args[len(args)-1], "-") {
				continue // further arguments
			}
			arg = "x"
		}
		args = append(args, arg)
	}
	return args
}

// check reports what is wrong with an example.
func (e example) check() error {
	err := understood(filled(e.text))
	if errors.Is(err, pflag.ErrHelp) || !e.whole && errors.Is(err, errArgs) {
		return nil
	}
	return err
}

// Every command of the documents exists, with its flags.
func TestGuideCommands(t *testing.T) {
	for guide, least := range map[string]int{"README.md": 3, "docs/how-to/run-on-machines.md": 5, "docs/how-to/use-your-own-etcd.md": 5, "docs/how-to/call-it.md": 8, "docs/how-to/replace-other-tools.md": 1, "docs/how-to/store-ids.md": 3, "docs/how-to/take-over-snowflakes.md": 5, "docs/how-to/monitor-it.md": 2, "docs/how-to/secure-it.md": 5, "docs/how-to/restore-etcd.md": 4, "docs/how-to/repair-clocks.md": 3, "docs/how-to/repair-sids.md": 5, "docs/how-to/upgrade.md": 2, "docs/reference/refusals.md": 10, "docs/reference/alerts.md": 10, "deploy/helm/allocator/README.md": 1} {
		found := examples(readFile(t, "../../"+guide))
		for _, e := range found {
			if err := e.check(); err != nil {
				t.Errorf("%s: allocator %s: %v", guide, e.text, err)
			}
		}
		if len(found) < least {
			t.Errorf("%s: %d commands were found", guide, len(found))
		}
	}
}

func TestExamples(t *testing.T) {
	doc := "Run `allocator admin release-sid` or `allocator status --addr NODE:9000`; `allocator_sid` is no command, nor `allocator`.\n" +
		"```sh\n$ ALLOCATOR_TOKEN=x bin/allocator get --ca ca.pem > ids   # draw\nsudo -u allocator allocator init --fresh | cat\ncurl allocator get\n```\n"
	want := []example{
		{"get --ca ca.pem", true}, {"init --fresh", true},
		{"admin release-sid", false}, {"status --addr NODE:9000", false},
	}
	got := examples(doc)
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	for _, e := range got {
		if err := e.check(); err != nil {
			t.Errorf("%v: %v", e, err)
		}
	}
	for _, e := range []example{
		{"admin release", false}, {"status --adr x", false}, {"admin release-sid", true}, {"doctor --etcd.endpoint …", false}, {"admin quarantine SID --reasons …", false},
		{"healthy", false}, {"", false}, {"serve now", true}, {"health --space", false},
	} {
		if e.check() == nil {
			t.Errorf("%v is taken for a command", e)
		}
	}
}
