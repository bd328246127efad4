package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Types of what evidence writes. Source: the in-toto attestation framework, Statement v1, and
// its predicate Test Result v0.1.
const (
	statementType = "https://in-toto.io/Statement/v1"
	testResult    = "https://in-toto.io/attestation/test-result/v0.1"
)

// A statement says of an image, by its digest, what tests showed.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     results   `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// results is one run of one suite. A test that could not decide is among those that warn:
// it shows nothing either way.
type results struct {
	Result        string     `json:"result"` // PASSED, WARNED or FAILED
	Configuration []resource `json:"configuration"`
	Passed        []string   `json:"passedTests"`
	Warned        []string   `json:"warnedTests"`
	Failed        []string   `json:"failedTests"`
}

// resource is what the suite ran on, and with it the numbers of the run.
type resource struct {
	Name        string            `json:"name"`
	URI         string            `json:"uri"`
	Digest      map[string]string `json:"digest"`
	Annotations map[string]any    `json:"annotations,omitempty"`
}

// inputs are the files that the suites left; one that is not given gets no statement.
type inputs struct {
	commit, chaos, sim, model, bugs string
}

// maxInput bounds what a suite may have left.
const maxInput = 64 << 20

// evidence writes a statement for each suite into the directory of a release: evidence-NAME.json,
// which has subject and predicate, and predicate-NAME.json with the predicate alone, as `cosign
// attest` wants it. It fails, after writing all, if a test failed.
func evidence(dir string, in inputs, out io.Writer) error {
	images, err := readImages(dir)
	if err != nil {
		return err
	}
	subjects, err := subjectsOf(images)
	if err != nil {
		return err
	}
	var failed []error
	for _, suite := range []struct {
		name, file string
		read       func([]byte) (results, map[string]any, error)
	}{
		{"chaos", in.chaos, readChaos},
		{"simulation", in.sim, readCampaign},
		{"model", in.model, readModel},
		{"planted-bugs", in.bugs, readBugs},
	} {
		if suite.file == "" {
			fmt.Fprintf(out, "%-13s no statement: it did not run\n", suite.name)
			continue
		}
		text, err := readBounded(suite.file)
		if err != nil {
			return err
		}
		r, numbers, err := suite.read(text)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", suite.name, suite.file, err)
		}
		r.Configuration = []resource{{
			Name:        suite.name,
			URI:         "git+https://github.com/flakelease/allocator@" + in.commit,
			Digest:      map[string]string{"gitCommit": in.commit},
			Annotations: numbers,
		}}
		r.judge()
		s := statement{Type: statementType, Subject: subjects, PredicateType: testResult, Predicate: r}
		if err := writeJSON(filepath.Join(dir, "evidence-"+suite.name+".json"), s); err != nil {
			return err
		}
		if err := writeJSON(filepath.Join(dir, "predicate-"+suite.name+".json"), r); err != nil {
			return err
		}
		fmt.Fprintf(out, "%-13s %s: %d passed, %d undecided, %d failed\n", suite.name, r.Result,
			len(r.Passed), len(r.Warned), len(r.Failed))
		if r.Result == "FAILED" {
			failed = append(failed, fmt.Errorf("%s: %s", suite.name, strings.Join(r.Failed, ", ")))
		}
	}
	return errors.Join(append(failed, writeSums(dir))...)
}

// subjectsOf returns the image that was tested: its index, and the manifest of each platform.
func subjectsOf(images []image) (out []subject, err error) {
	add := func(name, digest string) {
		algorithm, sum, ok := strings.Cut(digest, ":")
		if !ok || algorithm != "sha256" || len(sum) != 64 {
			err = errors.Join(err, fmt.Errorf("%s: %q is no sha256 digest", name, digest))
			return
		}
		out = append(out, subject{Name: name, Digest: map[string]string{algorithm: sum}})
	}
	for _, i := range images {
		if i.Name == "allocator" {
			add(i.Name, i.Digest)
			for _, platform := range sortedKeys(i.Platforms) {
				add(i.Name+" "+platform, i.Platforms[platform])
			}
		}
	}
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%s has no image named allocator", imagesFile)
	}
	return out, err
}

func (r *results) judge() {
	switch {
	case len(r.Failed) > 0:
		r.Result = "FAILED"
	case len(r.Warned) > 0:
		r.Result = "WARNED"
	default:
		r.Result = "PASSED"
	}
}

// add files a test under its verdict.
func (r *results) add(test, verdict string) {
	switch verdict {
	case "pass":
		r.Passed = append(r.Passed, test)
	case "fail":
		r.Failed = append(r.Failed, test)
	default:
		r.Warned = append(r.Warned, test)
	}
}

func none() results { return results{Passed: []string{}, Warned: []string{}, Failed: []string{}} }

// readChaos reads results.json of a run of chaos: the claims over the whole run, and each
// fault that was injected.
func readChaos(text []byte) (results, map[string]any, error) {
	r := none()
	var run struct {
		Verdict string   `json:"verdict"`
		Why     []string `json:"why"`
		Command string   `json:"command"`
		Level   string   `json:"level"`
		Seed    uint64   `json:"seed"`
		TookMs  int64    `json:"took_ms"`
		IDs     int64    `json:"ids"`
		Faults  []struct{ Fault, Verdict string }
		Checks  []struct{ Check, Verdict string }
		Danger  json.RawMessage `json:"danger"`
	}
	if err := json.Unmarshal(text, &run); err != nil {
		return r, nil, err
	}
	if run.Verdict == "" || len(run.Checks) == 0 {
		return r, nil, errors.New("it has no verdict or no checks: it is no results.json of a finished run")
	}
	r.add("the whole run", run.Verdict)
	for _, c := range run.Checks {
		r.add("claim "+c.Check, c.Verdict)
	}
	not := 0
	for _, f := range run.Faults {
		if f.Verdict == "not run" {
			not++
			continue
		}
		r.add("fault "+f.Fault, f.Verdict)
	}
	numbers := map[string]any{
		"command": run.Command,
		"level":   run.Level,
		"seed":    fmt.Sprint(run.Seed),
		"seconds": run.TookMs / 1000,
		"ids":     run.IDs,
		"not run": not,
	}
	if len(run.Danger) > 0 {
		numbers["danger"] = run.Danger
	}
	return r, numbers, nil
}

// readCampaign reads the state of a campaign of the simulation: a test is a mode, and one
// that failed has the seed that repeats it.
func readCampaign(text []byte) (results, map[string]any, error) {
	r := none()
	var c struct {
		First, Next uint64
		Simulated   int64
		Played      map[string]int
		Danger      json.RawMessage
		Failures    []struct {
			Seed            uint64
			Mode, Violation string
		}
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return r, nil, err
	}
	if len(c.Played) == 0 {
		return r, nil, errors.New("no seed was played")
	}
	broken := map[string]bool{}
	for _, f := range c.Failures {
		broken[f.Mode] = true
		r.add(fmt.Sprintf("seed %d of mode %s: %s", f.Seed, f.Mode, f.Violation), "fail")
	}
	for _, mode := range sortedKeys(c.Played) {
		if !broken[mode] {
			r.add(fmt.Sprintf("mode %s, %d seeds", mode, c.Played[mode]), "pass")
		}
	}
	numbers := map[string]any{
		"first seed":      fmt.Sprint(c.First),
		"seeds":           c.Next - c.First,
		"simulated hours": c.Simulated / 3.6e12,
	}
	if len(c.Danger) > 0 {
		numbers["danger"] = c.Danger
	}
	return r, numbers, nil
}

var (
	modelLine = regexp.MustCompile(`^(ok|FAIL)  ((?:mutant |probe |base |large )?[a-z0-9-]+)(:? .*)?$`)
	modelEnd  = regexp.MustCompile(`^(\d+) passed, (\d+) failed$`)
)

// readModel reads what chaos/model/run.sh prints: a line for each variant, then how many.
func readModel(text []byte) (results, map[string]any, error) {
	r := none()
	ended := ""
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		if m := modelLine.FindStringSubmatch(lines.Text()); m != nil {
			verdict := "pass"
			if m[1] == "FAIL" {
				verdict = "fail"
			}
			r.add(m[2], verdict)
		}
		if m := modelEnd.FindStringSubmatch(lines.Text()); m != nil {
			ended = m[0]
		}
	}
	if err := lines.Err(); err != nil {
		return r, nil, err
	}
	if want := fmt.Sprintf("%d passed, %d failed", len(r.Passed), len(r.Failed)); ended != want {
		return r, nil, fmt.Errorf("its last line is %q, and its lines are %s: it is not the log of a finished run",
			ended, want)
	}
	return r, map[string]any{"variants": len(r.Passed) + len(r.Failed)}, nil
}

// bugRow is a row of the table of chaos/planted: bug, breaks, incidents, kind, tier, seconds,
// found by, message. The first cell is empty in the second and further rows of a bug.
var bugRow = regexp.MustCompile(`^\| (?:\*\*([^*]+)\*\*: .*?)? ?\| .*? \| .*? \| ` +
	`(\w+).*? \| (\w*) \| [0-9.]* \| ([^|]+?) \| `)

// readBugs reads the table that `make bugs` writes. A bug that a test found is a test
// that passed; what was missed failed.
func readBugs(text []byte) (results, map[string]any, error) {
	r := none()
	bugs, name := map[string]bool{}, ""
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "| ") || strings.HasPrefix(lines.Text(), "| bug ") {
			continue
		}
		m := bugRow.FindStringSubmatch(lines.Text())
		if m == nil {
			return r, nil, fmt.Errorf("a row of another form: %s", lines.Text())
		}
		if m[1] != "" {
			name = m[1]
		}
		bugs[name] = true
		verdict := m[4]
		if strings.HasPrefix(verdict, "`") {
			verdict = "pass"
		}
		if verdict == "missed" {
			verdict = "fail"
		}
		r.add(name+" by "+m[2], verdict)
	}
	if err := lines.Err(); err != nil {
		return r, nil, err
	}
	if len(bugs) == 0 {
		return r, nil, errors.New("it has no rows")
	}
	return r, map[string]any{"bugs": len(bugs)}, nil
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	if err == nil && len(text) > maxInput {
		err = fmt.Errorf("%s has more than %d bytes", file, maxInput)
	}
	return text, err
}

func writeJSON(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
