package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/nemesis"
)

func tableCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "table DIR…",
		Short: "Print a Markdown table of the faults of one or several runs",
		Long: `Table prints a table of faults and verdicts from the results.json of runs. A fault
of several runs has the worst of its verdicts.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("expected the directory of a run, or several")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, dirs []string) error {
			var runs []*Results
			for _, dir := range dirs {
				res, err := readResults(dir)
				if err != nil {
					return usageError{err}
				}
				runs = append(runs, res)
			}
			_, err := os.Stdout.WriteString(table(runs))
			return err
		},
	}
}

func readResults(dir string) (*Results, error) {
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		return nil, err
	}
	var res Results
	if err := json.Unmarshal(data, &res); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &res, nil
}

// row is the result of a fault in several runs.
type row struct {
	injections, fired int
	ids               int64
	verdict           history.Verdict // "" if no run had it
	why               string          // reason of any verdict but a pass, or of not running it
	refused, returned int64           // the slowest, in ms; -1: none
}

// table returns the table of the faults of runs.
func table(runs []*Results) string {
	var b strings.Builder
	for _, r := range runs {
		why := ""
		if len(r.Why) > 0 {
			why = " (" + cell(r.Why[0], 160) + ")"
		}
		fmt.Fprintf(&b, "- %s, **%s**%s: %s IDs in %v, seed %d; `%s`; %s\n", r.Began.UTC().Format(
			"2006-01-02 15:04 MST"), r.Verdict, why, grouped(r.IDs),
			(time.Duration(r.TookMs) * time.Millisecond).Round(time.Second), r.Seed, r.command(), r.machine())
	}
	fmt.Fprintln(&b, "\n| fault | what it does | injected | IDs meanwhile | verdict | slowest refusal | recovered "+
		"after |\n|---|---|--:|--:|---|--:|--:|")
	absent := map[string][]string{}
	var reasons []string
	for _, f := range nemesis.Table() {
		w := sum(runs, f.Name)
		if w.verdict == "" && w.why == "" {
			w.why = "added after these runs"
		}
		if w.verdict == "" {
			if absent[w.why] == nil {
				reasons = append(reasons, w.why)
			}
			absent[w.why] = append(absent[w.why], "`"+f.Name+"`")
			continue
		}
		verdict := string(w.verdict)
		if w.verdict != history.Pass {
			verdict += ": " + cell(w.why, 160)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %d/%d | %s | %s | %s | %s |\n", f.Name, cell(f.About, 200), w.fired,
			w.injections, grouped(w.ids), verdict, inSeconds(w.refused), inSeconds(w.returned))
	}
	for _, why := range reasons {
		if why == notInProfile {
			fmt.Fprintf(&b, "\n**Not run**: %d other faults, which bin/chaos soak includes.\n", len(absent[why]))
			continue
		}
		fmt.Fprintf(&b, "\n**Not run**, %s: %s.\n", cell(why, 160), strings.Join(absent[why], ", "))
	}
	return b.String()
}

// sum combines the results of one fault in several runs.
func sum(runs []*Results, fault string) row {
	w := row{refused: -1, returned: -1}
	for _, r := range runs {
		for _, f := range r.Faults {
			if f.Fault != fault {
				continue
			}
			if len(f.Injections) == 0 {
				if w.verdict == "" {
					w.why = f.Reason
				}
				continue
			}
			verdict := history.Verdict(f.Verdict)
			if verdict == history.Broken && r.Verdict == history.Unknown {
				verdict = history.Unknown // the run proves nothing, and states why
			}
			if w.verdict == "" {
				w.verdict, w.why = verdict, f.Reason
			} else if worse := history.Worst(w.verdict, verdict); worse != w.verdict {
				w.verdict, w.why = worse, f.Reason
			}
			for _, o := range f.Injections {
				w.injections++
				if o.Fired {
					w.fired++
				}
			}
		}
		for _, c := range r.Checks {
			for _, p := range c.Phases {
				if p.Fault == fault {
					w.ids += p.During.IDs
					w.returned = max(w.returned, p.FirstMs)
				}
			}
			for _, d := range c.Refused {
				if d.Fault == fault {
					w.refused = max(w.refused, d.AfterMs)
				}
			}
		}
	}
	return w
}

// command returns how the run was started, without --dir.
func (res *Results) command() string {
	words := strings.Fields(res.Command)
	for i := 0; i < len(words); i++ {
		if words[i] == "--dir" && i+1 < len(words) {
			words = slices.Delete(words, i, i+2)
			i--
		} else if strings.HasPrefix(words[i], "--dir=") {
			words = slices.Delete(words, i, i+1)
			i--
		}
	}
	return strings.Join(words, " ")
}

func (res *Results) machine() string {
	if res.Setup == nil {
		return "machine unknown"
	}
	return strings.Join(res.Setup.Versions, ", ")
}

// cell makes a text fit into a cell of a table.
func cell(s string, n int) string { return strings.ReplaceAll(clip(s, n), "|", "\\|") }

func inSeconds(ms int64) string {
	if ms < 0 {
		return ""
	}
	return fmt.Sprintf("%.1f s", float64(ms)/1e3)
}

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
