package pages

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
)

const page = "# Page\n\n<!-- run: create -->\n```sh\nmkdir a\n```\n\n" +
	"1. In a list:\n\n   <!-- run -->\n   ```console\n   $ echo \\\n   a\n     a\n   ```\n" +
	"<!-- file: b.txt -->\n````\n```\nnot a fence\n```\n````\n\n<!-- run -->\n\n```\nunmarked\n```\n<!-- run: create -->\n```sh\nrmdir a\n```\n"

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	fatal.If(t, os.WriteFile(path, []byte(page), 0o600))
	p := Open(t, path)
	want := []Block{
		{"run: create", "sh", "mkdir a\n", 4}, {"run", "console", "$ echo \\\na\n  a\n", 11},
		{"file: b.txt", "", "```\nnot a fence\n```\n", 17}, {"", "", "unmarked\n", 25}, {"run: create", "sh", "rmdir a\n", 29},
	}
	if d := cmp.Diff(want, p.Blocks); d != "" {
		t.Error(d)
	}
	if got := p.Text(t, "run: create"); got != "mkdir a\nrmdir a\n" {
		t.Errorf("%q", got)
	}
}

func TestSteps(t *testing.T) {
	got, err := Block{Text: "$ a \\\n  b\nout\n\n$ c\n"}.Steps()
	if d := cmp.Diff([]Step{{"a \\\n  b\n", "out\n\n"}, {"c\n", ""}}, got); d != "" || err != nil {
		t.Error(err, d)
	}
	if _, err := (Block{Text: "out\n$ a\n"}).Steps(); err == nil {
		t.Error("output without a command is accepted")
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		got, want string
		same      bool
	}{
		{"a\n", "a", true},
		{"a  b \n", "a b", true},
		{"a\nb", "a", false},
		{"a", "a\nb", false},
		{"", "a", false},
		{"02MVRE9KJ2642", "02MVRE9KJ2999", true},
		{"02MVRE9KJ2642", "01M7WXJ6M6E5S817MJCVRRKD7A", false},
		{"01a1f9d9-1a9a-7082-a8a2-962be40838f5", "01a1f9d9-1a9a-7082-a8a2-962be40838f6", true},
		{"95552449887521538", "95552449887521570", true},
		{"2026-11-20T16:45:17.338Z", "2027-01-02T03:04:05.678Z", true},
		{"window left 25.0s, offset -0.1ms ±0.4ms", "window left 9.8s, offset +0.2ms ±12.0ms", true},
		{"written 1m2s ago", "written 4s ago", true},
		{"127.0.0.1:9000", "127.0.0.1:40112", true},
		{`{"sid":2}`, `{"sid":0}`, true},
		{"node-1  2    1", "node-1 0 1", true},
		{"node-1  2    1", "node-2 2 1", false},
		{"IDs 275,300", "IDs 1000000", true},
		{"duplicates 0", "duplicates 3", false},
		{"duplicates 1004", "duplicates 0", false},
		{"3 nodes", "2 nodes", false},
		{"a\nb\nc\nd", "a\n…\nd", true},
		{"a\nd", "a\n…\nd", true},
		{"a\nb", "a\n…\nd", false},
		{"a lot of b", "a … b", true},
		{"a lot of b", "a …", true},
		{"a.b", "a+b", false},
	} {
		if err := Compare(c.got, c.want); (err == nil) != c.same {
			t.Errorf("%q, shown as %q: %v", c.got, c.want, err)
		}
	}
}

func TestShell(t *testing.T) {
	s := NewShell(t, Config{Dir: t.TempDir(), Env: []string{"A=1"}, Here: strings.NewReplacer("page", "here"), Within: wait.Most})
	for _, c := range []struct {
		commands, out string
		code          int
	}{
		{"echo $A; B=2; mkdir d; cd d", "1\n", 0},
		{"echo $B; basename $PWD >&2; echo page", "2\nd\nhere\n", 0},
		{"cat; cat <<E\nx\nE\n", "x\n", 0}, // there is no input
		{"printf x", "x", 0},
		{"echo a; (exit 3); echo b", "a\n", 3},
		{"echo ${B-none}; basename $PWD", "none\n" + filepath.Base(s.c.Dir) + "\n", 0},
		{"echo $NONE", "…", 2}, // what is not set is an error
		{"if", "…", 2},
	} {
		out, code, err := s.Run(c.commands)
		if Compare(out, c.out) != nil || code != c.code || errors.Is(err, ErrFailed) != (c.code != 0) {
			t.Errorf("%s: %q, %d, %v", c.commands, out, code, err)
		}
	}
}

func TestShellTooLong(t *testing.T) {
	s := NewShell(t, Config{Within: 100 * time.Millisecond})
	if _, _, err := s.Run("sleep 60"); err == nil || !strings.Contains(err.Error(), "not within 100ms") {
		t.Error(err)
	}
}

// What a page leaves running ends with the test.
func TestProcessesEnd(t *testing.T) {
	var s *Shell
	t.Run("page", func(t *testing.T) {
		s = NewShell(t, Config{})
		if _, _, err := s.Run("sleep 1000 & true"); err != nil {
			t.Fatal(err)
		}
		fatal.If(t, s.Carry(Block{Mark: "background: b", Lang: "console", Text: "$ sleep 1000\n"}))
	})
	for _, p := range []*process{s.sh, s.background["b"]} {
		wait.Until(t, "the process ends", func() bool { return syscall.Kill(-p.Cmd.Process.Pid, 0) != nil })
	}
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	blocks := []Block{
		{"file: a.txt", "", "page\n", 1},
		{"run: name", "sh", "X=1; export X\n", 1},
		{"run", "console", "$ cat a.txt\nhere\n\n$ echo $X 1234\n1 9999\n", 1},
		{"background: b", "console", "$ trap 'echo bye; exit' INT; echo $X; while :; do sleep 0.01; done\n1\n", 1},
		{"not run: no reason", "sh", "exit 1\n", 1},
		{"", "sh", "exit 1\n", 1},
		{"interrupt: b", "console", "^C\nbye\n", 1},
	}
	c := Config{Dir: dir, Here: strings.NewReplacer("page", "here"), Within: wait.Most}
	Page{"page", blocks}.Follow(t, NewShell(t, c))

	c.Within = time.Second
	for _, b := range []Block{
		{"run", "sh", "true; false", 1},
		{"run", "console", "$ false\n", 1},
		{"run", "console", "$ echo a\nb\n", 1},
		{"run", "console", "$ echo a\n", 1},
		{"background: b", "console", "$ echo a; sleep 1000\nb\n", 1},
		{"background: b", "console", "$ echo a\nb\n", 1},
		{"background: b", "console", "$ true\n$ true\n", 1},
		{"interrupt: other", "console", "^C\n", 1},
	} {
		if NewShell(t, c).Carry(b) == nil {
			t.Errorf("%+v: no error", b)
		}
	}
}
