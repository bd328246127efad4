package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/cluster"
)

// The examples show no ULID as the answer of two calls.
func TestExamplesShowNoULIDTwice(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(?:\d+\) ")?([0-9A-Z]{26})"?$`).FindAllStringSubmatch(readFile(t, "../../docs/how-to/call-it.md"), -1) {
		if seen[m[1]] {
			t.Errorf("%s is shown twice", m[1])
		}
		seen[m[1]] = true
	}
	if len(seen) < 6 {
		t.Errorf("found %d IDs", len(seen))
	}
}

// What pages about databases show as the output of commands is that, to the last digit.
func TestDatabasePagesShowOutput(t *testing.T) {
	for path, atLeast := range map[string]int{"../../docs/how-to/store-ids.md": 3, "../../docs/how-to/move-from-uuids.md": 2} {
		found := 0
		for _, b := range pages.Open(t, path).Blocks {
			if b.Lang != "console" {
				continue
			}
			steps, err := b.Steps()
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for _, s := range steps {
				found++
				args, _ := strings.CutPrefix(s.Command, "allocator ")
				if _, out, errs := allocator(strings.Fields(args)...); out != strings.TrimRight(s.Prints, "\n")+"\n" {
					t.Errorf("%s: %s: got %q %s, the page has %q", path, s.Command, out, errs, s.Prints)
				}
			}
		}
		if found < atLeast {
			t.Errorf("%s: found %d examples", path, found)
		}
	}
}

// The page says when the decimal form of each layout gets a digit more, computed from the layout: texts of both
// lengths sort otherwise than the IDs.
func TestDecimalTextChangesLength(t *testing.T) {
	page := readFile(t, "../../docs/how-to/where-ids-break.md")
	now := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, name := range flake.Layouts() {
		f, err := flake.ParseFormat(name)
		fatal.If(t, err)
		digits := func(ms int64) int {
			id, err := f.Min(ms)
			if err != nil {
				return 0 // The layout has ended, or not begun.
			}
			return len(strconv.FormatInt(id.Int64(), 10))
		}
		const years = 200 * 365 * 24 * 3600 * 1000
		after := sort.Search(years, func(ms int) bool { d := digits(now + int64(ms)); return d == 0 || d > digits(now) })
		changes := time.UnixMilli(now + int64(after)).UTC().Format("2006-01-02T15:04:05.000Z")
		if digits(now) == 0 || after == years || digits(now+int64(after)) == 0 { // not in 200 years of the layout
			continue
		}
		if !strings.Contains(page, changes) || !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s: the page does not say that its integers have %d digits from %s on", name, digits(now)+1, changes)
		}
	}
}

// The page names the layouts with the sid in the lowest bits, where id % shards sees only it.
func TestLowestBits(t *testing.T) {
	page := readFile(t, "../../docs/how-to/where-ids-break.md")
	named := regexp.MustCompile("The lowest bits of (.*?) are the sid").FindString(page)
	for _, name := range flake.Layouts() {
		f, err := flake.ParseFormat(name)
		fatal.If(t, err)
		if lowest := f.Layout.SIDBits() > 0 && !f.Layout.SIDFirst(); lowest != strings.Contains(named, "`"+name+"`") {
			t.Errorf("%s: the page says otherwise: %q", name, named)
		}
	}
}

// The embed.Config of call-it.md is one that a program can start with: its listener and its
// settings are those that this configuration has, with a key file that exists.
func TestPageEmbeds(t *testing.T) {
	literal := regexp.MustCompile(`(?s)embed\.Open\(ctx, embed\.Config\{.*?\}\)`).FindString(readFile(t, "../../docs/how-to/call-it.md"))
	gossip := regexp.MustCompile(`Gossip:\s*"([^"]+)"`).FindStringSubmatch(literal)
	if gossip == nil {
		t.Fatalf("the page has no embed.Config with a gossip address: %q", literal)
	}
	settings := map[string]string{}
	for _, m := range regexp.MustCompile(`"([a-z.-]+)":\s*"([^"]+)"`).FindAllStringSubmatch(literal, -1) {
		settings[m[1]] = m[2]
	}
	if settings["gossip.key-file"] != "" {
		settings["gossip.key-file"] = filepath.Join(t.TempDir(), "gossip.key")
		fatal.If(t, os.WriteFile(settings["gossip.key-file"], []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600))
	}
	a, err := embed.Open(t.Context(), embed.Config{
		Endpoints: []string{"http://127.0.0.1:1"}, Gossip: gossip[1], Settings: settings, OpenTimeout: time.Second,
	})
	if err == nil {
		_ = a.Close()
	}
	if errors.Is(err, embed.ErrConfig) || errors.Is(err, cluster.ErrNoKey) {
		t.Error(err)
	}
}

// The Go examples of README and of call-it.md compile, each part between blank lines by itself.
func TestReadmeCompiles(t *testing.T) {
	var b strings.Builder
	b.WriteString("package readme\n\nimport (\n\"context\"\n\"github.com/flakelease/allocator/client\"\n\"github.com/flakelease/allocator/embed\"\n)\n\n" +
		"var _, _ = client.New, embed.Open\n")
	parts := 0
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readFile(t, "../../README.md")+readFile(t, "../../docs/how-to/call-it.md"), -1) {
		for part := range strings.SplitSeq(block[1], "\n\n") {
			parts++
			b.WriteString("\nfunc _(ctx context.Context, endpoints []string) {\n" + part + "\n")
			for _, m := range regexp.MustCompile(`(?m)^(\w+), err :=`).FindAllStringSubmatch(part, -1) {
				b.WriteString("_, _ = " + m[1] + ", err\n")
			}
			b.WriteString("}\n")
		}
	}
	if parts < 2 {
		t.Fatalf("found %d examples", parts)
	}
	file := filepath.Join(t.TempDir(), "readme.go")
	fatal.If(t, os.WriteFile(file, []byte(b.String()), 0o600))
	if out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, &b)
	}
}

// What documents name as a switch of the chart is one of its values.
func TestDocumentsNameChartValues(t *testing.T) {
	var schema map[string]any
	fatal.If(t, json.Unmarshal([]byte(readFile(t, "../../deploy/helm/allocator/values.schema.json")), &schema))
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	named := 0
	for _, page := range append(pages, "../../deploy/helm/allocator/README.md", "../../deploy/helm/allocator/UPGRADING.md") {
		for _, m := range regexp.MustCompile("[`| ]([a-zA-Z]+(?:\\.[a-zA-Z]+)*\\.enabled)\\b").FindAllStringSubmatch(readFile(t, page), -1) {
			named++
			at := schema
			for part := range strings.SplitSeq(m[1], ".") {
				properties, _ := at["properties"].(map[string]any)
				at, _ = properties[part].(map[string]any)
			}
			if at == nil {
				t.Errorf("%s names %s, which the chart's schema refuses", page, m[1])
			}
		}
	}
	if named < 6 {
		t.Errorf("found %d values", named)
	}
}
