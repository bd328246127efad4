package virtual

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/status"
)

// nightPage shows what operators see of each fault.
const nightPage = "../../docs/how-to/the-first-night.md"

var updateNight = flag.Bool("update-night", false, "write what operators see into "+nightPage)

// nights are the faults of the page, by its marks. node-1 is asked, and one node's log is read.
var nights = []struct {
	mark  string
	fault func(e *env)
	log   int // the number of the node in env.nodes; -1: none
}{
	{"a node ends", func(e *env) { e.nodes[1].kill() }, -1},
	{"etcd hangs", outages["hangs"].begin, -1},
	{"a node does not reach etcd", func(e *env) { e.net.Cut(e.nodes[1].host, etcdHost) }, 1},
	{"a node does not reach nodes", func(e *env) {
		e.gossip.Partition([]string{e.nodes[1].gossip.Addr()}, []string{e.nodes[0].gossip.Addr(), e.nodes[2].gossip.Addr()})
	}, 1},
	{"a clock is set", func(e *env) { e.nodes[1].clocks.Step(time.Second) }, 1},
	{"a clock is wrong at a start", func(e *env) { e.start(options{off: time.Second}) }, -1},
}

var (
	clockTime = regexp.MustCompile(`[0-9:.]+ UTC`)
	changing  = regexp.MustCompile(`[0-9:.]+|; [0-9]+ problems? more| \(since [^)]*\)`)
	quiet     = regexp.MustCompile(`^(gossip |watch of etcd|read of etcd for a request)`) // Repeats, or says nothing new.
	logLine   = regexp.MustCompile(`(?m)^at=(\S+) level=(?:WARN|ERROR) msg=(?:"([^"]*)"|(\S+)).*?(?: reason=(\S+))?`)
)

// nightLine is one line of what operators see.
type nightLine struct {
	at   time.Duration // since the fault
	text string
}

// night notes for 40 s which sentences last for two seconds on top of what node-1 says of the cluster, and what a log
// says of the fault. Links are those of the sentences.
func night(t *testing.T, fault func(*env), log int) (seen string, links []string) {
	run(t, func(e *env) {
		e.startAll(3)
		time.Sleep(20 * time.Second)
		conn := e.nodes[0].dial()
		defer conn.Close()
		began := e.now()
		fault(e)
		var lines []nightLine
		var first nightLine
		form, times := "", 0
		for e.now() < began+40*time.Second {
			c, err := status.Ask(e.t.Context(), conn)
			fatal.If(t, err)
			s := c.Summary
			if now := changing.ReplaceAllString(s.Text, ""); now != form {
				form, times, first = now, 0, nightLine{e.now() - began, "node-1 says: " + s.Text}
			}
			if times++; times == 8 && s.Level != status.OK {
				lines = append(lines, first)
				links = append(links, strings.TrimPrefix(strings.Replace(s.Page, "reference/", "../reference/", 1), "how-to/"))
			}
			time.Sleep(250 * time.Millisecond)
		}
		if log >= 0 {
			m := e.nodes[log]
			for _, l := range logLine.FindAllStringSubmatch(m.log.String(), -1) {
				at, err := time.ParseDuration(l[1])
				fatal.If(t, err)
				if at < began || quiet.MatchString(l[2]) {
					continue
				}
				lines = append(lines, nightLine{at - began, m.name + " logs: " + strings.TrimSpace(l[2]+l[3]+" "+l[4])})
			}
		}
		slices.SortStableFunc(lines, func(a, b nightLine) int { return cmp.Compare(a.at, b.at) })
		for _, l := range lines {
			seen += fmt.Sprintf("%.1fs %s\n", l.at.Seconds(), l.text)
		}
		e.etcd.SetFault(nil)
		e.each(e.net.Heal)
	})
	return seen, links
}

// TestFirstNight: what operators see of a fault, in order, is what the page shows, which links to the pages that the
// sentences name, and gives alerts as they are in the rules.
func TestFirstNight(t *testing.T) {
	tier.Check(t, "faults under nodes that are watched")
	slow(t)
	text, err := os.ReadFile(nightPage)
	fatal.If(t, err)
	page := pages.Page{Path: nightPage, Blocks: pages.Parse(string(text))}
	for _, n := range nights {
		t.Run(n.mark, func(t *testing.T) {
			seen, links := night(t, n.fault, n.log)
			want := page.Text(t, "seen: "+n.mark)
			anyTime := func(s string) string { return clockTime.ReplaceAllString(s, "UTC") }
			switch err := pages.Compare(anyTime(seen), anyTime(want)); {
			case err != nil && *updateNight:
				text = []byte(strings.Replace(string(text), n.mark+" -->\n```text\n"+want, n.mark+" -->\n```text\n"+seen, 1))
			case err != nil:
				t.Errorf("%v\nRead it, and write it into the page with -update-night", err)
			}
			_, section, _ := strings.Cut(string(text), "<!-- seen: "+n.mark+" -->")
			section, _, _ = strings.Cut(section, "\n#")
			for _, link := range links {
				if !strings.Contains(section, "("+link+")") {
					t.Errorf("the section does not link to %s, and its sentences do", link)
				}
			}
		})
	}
	if *updateNight {
		fatal.If(t, os.WriteFile(nightPage, text, 0o644))
	}
	rules, err := os.ReadFile("../../deploy/monitoring/rules.yaml")
	fatal.If(t, err)
	named := regexp.MustCompile(`\[(Allocator\w+)\]\([^)]*\) \((\w+), (\w+)\)`).FindAllStringSubmatch(string(text), -1)
	for _, a := range named {
		_, rule, _ := strings.Cut(string(rules), "- alert: "+a[1]+"\n")
		rule, _, _ = strings.Cut(rule, "- alert: ")
		if !strings.Contains(rule, "severity: "+a[2]+"\n") || !strings.Contains(rule, " for: "+a[3]+"\n") {
			t.Errorf("%s: it is not %s after %s in the rules", a[1], a[2], a[3])
		}
	}
	if all := strings.Count(string(text), "[Allocator"); len(named) < 8 || len(named) != all {
		t.Errorf("the page names %d alerts, and of %d severity and time", all, len(named))
	}
}
