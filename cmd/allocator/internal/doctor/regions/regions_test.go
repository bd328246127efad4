package regions

import (
	"errors"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/status"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct{ file, says string }{
		"yaml":          {"regions:\n- {name: eu, addr: 'h:1,h:2'}\n- {name: us, addr: h:3, ca: a.pem, token-file: t}\n", ""},
		"json":          {`{"regions":[{"name":"eu","addr":"h:1"},{"name":"us","addr":"h:2"}]}`, ""},
		"empty":         {"", `lists 0 regions under "regions:"`},
		"one":           {"regions: [{name: eu, addr: h:1}]", `lists 1 region under "regions:": give 2`},
		"no name":       {"regions: [{name: eu, addr: h:1}, {addr: h:1}]", "region 2 has no name"},
		"one name":      {"regions: [{name: eu, addr: h:1}, {name: eu, addr: h:2}]", "two regions have the name eu"},
		"no addr":       {"regions: [{name: eu, addr: h:1}, {name: us}]", "region us has no addr"},
		"no port":       {"regions: [{name: eu, addr: h:1}, {name: us, addr: h}]", "region us: addr h is not host:port"},
		"a misspelling": {"regions: [{name: eu, adr: h:1}]", "field adr not found"},
		"a list":        {"- name: eu", "cannot unmarshal"},
		"not yaml":      {"{", "did not find"},
	} {
		list, err := parse([]byte(tc.file))
		if tc.says == "" && (err != nil || len(list) != 2) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v, %v, want %q", name, list, err, tc.says)
		}
	}
}

// region is one whose node answers with that.
func region(name string, l flake.Layout, pool, sids string) found {
	c := status.Cluster{Pool: pool, Layout: l.String(), EpochUnixMs: l.Epoch(), PoolSIDs: sids}
	nodes := []deployment.NodeReport{{Addr: name + ":1", Name: name + "-1", Cluster: c}}
	return found{name: name, hint: func(string) string { return "" }, nodes: nodes}
}

func TestExamine(t *testing.T) {
	const tw = flake.Twitter
	away := region("asia", tw, "", "")
	away.nodes[0].Err = errors.New("connection refused")
	two := region("eu", tw, "p1", "0-255")
	two.nodes = append(two.nodes, region("eu", tw, "p2", "0-255").nodes...)
	other := region("us", tw, "p2", "256-511")
	other.nodes[0].Cluster.EpochUnixMs++
	custom, err := flake.ParseLayout("40/11/12")
	if err != nil {
		t.Fatal(err)
	}
	bits := func(name, pool, sids string) found { return region(name, custom, pool, sids) }
	for name, tc := range map[string]struct {
		all  []found
		want []string // lines in their order, without the ok ones of regions
	}{
		"disjoint": {[]found{region("eu", tw, "p1", "0-255"), region("us", tw, "p2", "512-767"), region("asia", tw, "p3", "300")},
			[]string{"ok region-layout | all have layout twitter and epoch 2010-11-04T01:42:54.657Z", "ok region-sids | no sid is in two regions; in none: 256-299, 301-511, 768-1023"}},
		"all of them":      {[]found{region("us", tw, "p2", "512-1023"), region("eu", tw, "p1", "0-511")}, []string{"ok region-layout |", "ok region-sids | in none: none"}},
		"of a custom one":  {[]found{bits("eu", "p1", "0-1023"), bits("us", "p2", "1024-2047")}, []string{"ok region-layout | 40/11/12", "ok region-sids | in none: none"}},
		"many runs":        {[]found{region("a", tw, "p1", "1"), region("b", tw, "p2", "3"), region("c", tw, "p3", "5"), region("d", tw, "p4", "7"), region("e", tw, "p5", "9")}, []string{"ok region-layout |", "ok region-sids | 0, 2, 4, 6, and 2 more runs"}},
		"overlapping":      {[]found{region("eu", tw, "p1", "0-255"), region("us", tw, "p2", "200-300")}, []string{"ok region-layout |", "fail region-sids | eu (0-255) and us (200-300) both have the sids 200-255"}},
		"by one sid":       {[]found{region("us", tw, "p2", "255-511"), region("eu", tw, "p1", "0-255")}, []string{"ok region-layout |", "fail region-sids | us (255-511) and eu (0-255) both have the sids 255:"}},
		"one within":       {[]found{region("eu", tw, "p1", "0-1023"), region("us", tw, "p2", "7")}, []string{"ok region-layout |", "fail region-sids | both have the sids 7:"}},
		"one space":        {[]found{region("eu", tw, "p1", "0-255"), region("us", tw, "p1", "0-255")}, []string{"ok region-layout |", "fail region-sids | eu and us are one space: pool p1"}},
		"another layout":   {[]found{region("eu", tw, "p1", "0-255"), region("us", flake.Discord, "p2", "256-511")}, []string{"fail region-layout | us has layout discord and epoch 2015-01-01T00:00:00Z, and eu has layout twitter"}},
		"another epoch":    {[]found{region("eu", tw, "p1", "0-255"), other}, []string{"fail region-layout | epoch 2010-11-04T01:42:54.658Z, and eu"}},
		"one is away":      {[]found{region("eu", tw, "p1", "0-255"), away, region("us", tw, "p2", "0")}, []string{"fail region | asia: no node says what its space is: asia:1: connection refused", "ok region-layout |", "fail region-sids | both have the sids 0:"}},
		"two away":         {[]found{region("eu", tw, "p1", "0-255"), away}, []string{"fail region | asia", "skipped region-sids | no two regions"}},
		"two spaces in it": {[]found{two, region("us", tw, "p3", "256")}, []string{"fail region | eu has nodes of two spaces: pools p1 and p2", "skipped region-sids |"}},
		"not read yet":     {[]found{region("eu", tw, "", ""), region("us", tw, "p3", "256")}, []string{"fail region | eu-1 at eu:1: the node has not read its space", "skipped region-sids |"}},
		"nonsense":         {[]found{region("eu", tw, "p1", "0-4000"), region("us", 0, "p3", "256")}, []string{"fail region | goes beyond sid 1023", "fail region | invalid layout", "skipped region-sids |"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, reached := examine(tc.all)
			if !reached {
				t.Error("no region was reached")
			}
			i := 0
			for _, c := range got {
				line := string(c.State) + " " + c.Name + " | " + c.Detail
				if strings.HasPrefix(line, "ok region |") {
					continue
				}
				if i == len(tc.want) {
					t.Fatalf("one more: %s", line)
				}
				head, part, _ := strings.Cut(tc.want[i], "| ")
				if !strings.HasPrefix(line, strings.TrimSpace(head)) || !strings.Contains(line, part) || c.State == "fail" && c.Do == "" {
					t.Errorf("%s (%s), want %s", line, c.Do, tc.want[i])
				}
				i++
			}
			if i != len(tc.want) {
				t.Errorf("no line %s", tc.want[i])
			}
		})
	}
	if _, reached := examine([]found{away, away}); reached {
		t.Error("reached a region that is away")
	}
}
