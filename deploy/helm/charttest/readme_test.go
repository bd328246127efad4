package charttest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"helm.sh/helm/v3/pkg/strvals"
)

// Commands in the chart's pages work: the values of `helm install`, and the commands of the allocator. Objects that
// commands name are in TestPrintedCommands.
func TestReadmeWorks(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "README.md"))
	fatal.If(t, err)
	readme := strings.ReplaceAll(string(text), "\\\n", " ")

	values := map[string]any{}
	line := regexp.MustCompile(`(?m)^helm install ids deploy/helm/allocator .*$`).FindString(readme)
	for _, m := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(line, -1) {
		fatal.If(t, strvals.ParseInto(m[1], values))
	}
	r := mustRender(t, values, install)
	for _, p := range pods(t, r.objects) {
		if got := p.spec.Containers[0].Image; got != "allocator:latest" {
			t.Errorf("%s runs %s, but make image builds allocator:latest", p.owner, got)
		}
	}
	script, err := os.ReadFile("../../image/build.sh")
	fatal.If(t, err)
	for _, want := range []string{"image=${IMAGE:-allocator} ", `--tag "$image:latest"`} {
		if !strings.Contains(string(script), want) {
			t.Errorf("deploy/image/build.sh has no %q, which README.md relies on", want)
		}
	}
	values = nil
	for _, b := range pages.Parse(readme) {
		if b.Lang == "yaml" {
			values = read(t, b.Text)
			mustRender(t, values, install)
		}
	}
	if values == nil {
		t.Fatal("found no values in README.md")
	}

	cli := commandLine(t)
	notes := r.notes + mustRender(t, ciValues(t)["secure"], upgrade).notes
	upgrading, err := os.ReadFile(filepath.Join(chartDir, "UPGRADING.md"))
	fatal.If(t, err)
	all := readme + notes + string(upgrading)
	commands := regexp.MustCompile("(?:`|-- /)allocator ([a-z]+(?: [a-z]+)*)").FindAllStringSubmatch(all, -1)
	if len(commands) < 5 {
		t.Errorf("found only %d commands of the allocator", len(commands))
	}
	for _, m := range commands {
		words := strings.Fields(m[1])
		words = words[:min(len(words), 2)]
		if !strings.Contains(cli, "## allocator "+words[0]+"\n") && !strings.Contains(cli, "## allocator "+strings.Join(words, " ")+"\n") {
			t.Errorf("there is no command allocator %s", m[1])
		}
	}

	// Values by name.
	top := readSchema(t)
	for _, m := range regexp.MustCompile("`([a-zA-Z]+(?:\\.[a-zA-Z]+)+)(?:=[^`]*)?`").FindAllStringSubmatch(readme+string(upgrading), -1) {
		s, ok := top, true
		for name := range strings.SplitSeq(m[1], ".") {
			if s, ok = s.Properties[name]; !ok {
				break
			}
		}
		if first, rest, _ := strings.Cut(m[1], "."); !ok && top.Properties[first].Description != "" && rest != "tar" && rest != "sock" {
			t.Errorf("there is no value %s", m[1])
		}
	}
}
