package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

var (
	usesAction  = regexp.MustCompile(`uses: (\S+)(.*)`)
	pinned      = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	callsMake   = regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*(?: [a-z][a-z0-9-]*)*)`)
	beginsJob   = regexp.MustCompile(`(?m)^  [a-z][a-z-]*:$`)
	runsOurs    = regexp.MustCompile(`\b(make|go|npm|npx|apt-get|\./[a-z]|bin/[a-z-]+) [a-z]`)
	publishes   = regexp.MustCompile(`npm publish --ignore-scripts `) // It sends a file, and runs nothing of it.
	makesTarget = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
)

// wrongInWorkflow returns what is wrong with a workflow: an action that is not pinned by the
// hash of a commit, permissions that are not given for all jobs, a job that may sign as the project
// and runs code of it or of a module, one that may push and runs a file that tests could write, a target that make
// has not.
func wrongInWorkflow(text string, targets map[string]bool) (out []string) {
	if !strings.Contains(text, "\npermissions:\n  contents: read\n") {
		out = append(out, "it does not begin with permissions to read alone")
	}
	for _, m := range usesAction.FindAllStringSubmatch(text, -1) {
		if !pinned.MatchString(m[1]) || !strings.HasPrefix(m[2], " # v") {
			out = append(out, m[1]+" is not pinned by a hash, with its version behind it")
		}
	}
	for _, job := range beginsJob.Split(text, -1)[1:] {
		for _, step := range runsOurs.FindAllString(publishes.ReplaceAllString(job, ""), -1) {
			if strings.Contains(job, "id-token: write") {
				out = append(out, "a job that may sign runs "+step)
			}
			program, _, _ := strings.Cut(step, " ")
			if strings.Contains(job, "packages: write") && !strings.Contains(job, `sha256sum --check --strict <<<"$PROGRAM  `+program+`"`) {
				out = append(out, "a job that may push runs "+program+" of another job, and does not compare its digest")
			}
		}
	}
	var called []string
	for _, m := range callsMake.FindAllStringSubmatch(text, -1) {
		called = append(called, strings.Fields(m[1])...)
	}
	for _, target := range called {
		if !targets[target] {
			out = append(out, "make has no target "+target)
		}
	}
	return out
}

// Workflows call make, and nothing in them moves without a commit here.
func TestWorkflows(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range makesTarget.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	files, err := filepath.Glob(filepath.Join(root(t), ".github/workflows/*.yml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		fatal.If(t, err)
		for _, wrong := range wrongInWorkflow(string(text), targets) {
			t.Errorf("%s: %s", filepath.Base(file), wrong)
		}
	}
}

func TestWrongInWorkflow(t *testing.T) {
	const head = "name: x\npermissions:\n  contents: read\njobs:\n"
	hash := strings.Repeat("a", 40)
	for text, want := range map[string]string{
		head + "uses: a/b@" + hash + " # v1.2.3\nrun: make lint contracts\n": "",
		head + "uses: a/b/c@" + hash + "\n":                                  "a/b/c@" + hash + " is not pinned",
		head + "uses: a/b@v4\n":                                              "a/b@v4 is not pinned",
		head + "run: make lint nothing\n":                                    "make has no target nothing",
		"name: x\njobs:\n":                                                   "permissions to read alone",

		head + "  a:\n    run: make lint\n  b:\n    permissions:\n      id-token: write\n    run: cosign sign\n": "",
		head + "  a:\n    permissions:\n      id-token: write\n    run: |\n      bin/x-y push\n":                 "a job that may sign runs bin/x-y p",
		head + "  a:\n    permissions:\n      id-token: write\n    run: npm publish --ignore-scripts a.tgz\n":    "",
		head + "  a:\n    permissions:\n      id-token: write\n    run: npm publish a.tgz\n":                     "a job that may sign runs npm p",
		head + "  a:\n    permissions:\n      packages: write\n    run: |\n      bin/x-y push\n":                 "runs bin/x-y of another job",
	} {
		got := strings.Join(wrongInWorkflow(text, map[string]bool{"lint": true, "contracts": true}), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// A lock file of npm must install anywhere: it names no host.
func TestLockFilesNameNoHost(t *testing.T) {
	out, err := exec.Command("git", "-C", root(t), "ls-files", "*package-lock.json").Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("%q, %v", out, err)
	}
	for _, name := range strings.Fields(string(out)) {
		if text := read(t, name); strings.Contains(text, "://") || !strings.Contains(text, `"integrity"`) {
			t.Errorf("%s names a host, or lacks the sums of its packages", name)
		}
	}
}
