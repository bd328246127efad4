package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/chaos/fatal"
)

// Settings that are printed as a file give the same settings when they are read.
func TestYAML(t *testing.T) {
	given := map[string]string{
		"node.name": "null", "epoch": "2024-02-03T04:05:06.789Z", "etcd.endpoints": "http://a:1,http://b:2", "etcd.tls.ca": "/a b: #c\n\"d\"",
		"sid-range": "3-7", "listen.http": "", "limit.connections": "7", "console.operate": "true", "gossip.key-file": "012",
	}
	want, list, err := Load(Sources{Given: given})
	fatal.If(t, err)
	got, _ := reload(t, YAML(list))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", YAML(list), diff)
	}
	if text := YAML(list); !strings.Contains(text, "\nsid-range: 3-7  # program\n") || !strings.Contains(text, "\n  window: 30s  # default\n") || strings.Count(text, "\nlease:") != 1 {
		t.Error(text)
	}
}

func reload(t *testing.T, text string) (Config, []Setting) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.yaml")
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	c, list, err := Load(Sources{File: path})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c, list
}

// The sample sets nothing as it is; without the first # of each line it sets every
// setting to its default.
func TestSample(t *testing.T) {
	if _, list := reload(t, Sample()); len(list) == 0 {
		t.Error("no settings")
	} else {
		for _, s := range list {
			if s.Source != "default" {
				t.Errorf("the sample sets %s to %q", s.Key, s.Value)
			}
		}
	}
	_, body, _ := strings.Cut(Sample(), "\n\n")
	got, list := reload(t, regexp.MustCompile(`(?m)^#`).ReplaceAllString(body, ""))
	want := Default()
	want.Node.Name = "node-1"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, s := range list {
		if s.Source == "default" {
			t.Errorf("the sample lacks %s", s.Key)
		}
	}
}

func TestSampleIsCurrent(t *testing.T) {
	const path = "../../docs/reference/allocator.sample.yaml"
	if *update {
		fatal.If(t, os.WriteFile(path, []byte(Sample()), 0o644))
		return
	}
	have, err := os.ReadFile(path)
	fatal.If(t, err)
	if diff := cmp.Diff(string(have), Sample()); diff != "" {
		t.Errorf("%s is out of date: run go test ./internal/config -update\n%s", path, diff)
	}
}
