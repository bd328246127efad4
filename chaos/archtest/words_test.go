package archtest

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wordRule is a line of words.txt.
type wordRule struct {
	word    *regexp.Regexp
	instead string
	except  *regexp.Regexp // nil: the word is never right
}

// notOurs are files that are not written here, or that have to name the words.
var notOurs = regexp.MustCompile(`(^|/)(LICENSE|go\.sum|package-lock\.json|words\.txt|words_test\.go)$|\.pb\.go$|^deploy/helm/.*/vendor/`)

// quotes are marks that have a plain form.
var quotes = regexp.MustCompile("[«»‘’“”]")

var (
	hump       = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	underscore = strings.NewReplacer("_", " ")
)

func wordRules(t *testing.T) (out []wordRule) {
	t.Helper()
	for line := range strings.Lines(read(t, "chaos/archtest/words.txt")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, " | ")
		if len(f) < 2 || len(f) > 3 {
			t.Fatalf("words.txt: %q has %d fields", line, len(f))
		}
		r := wordRule{word: regexp.MustCompile(`(?i)\b(` + f[0] + `)\b`), instead: f[1]}
		if len(f) == 3 {
			r.except = regexp.MustCompile(f[2])
		}
		out = append(out, r)
	}
	return out
}

// unwanted returns what is wrong with a line: each word, and what to write instead.
func unwanted(rules []wordRule, line string) (out []string) {
	words := underscore.Replace(hump.ReplaceAllString(line, "$1 $2"))
	for _, r := range rules {
		if m := r.word.FindString(words); m != "" && (r.except == nil || !r.except.MatchString(line)) {
			out = append(out, m+": write "+r.instead)
		}
	}
	if m := quotes.FindString(line); m != "" {
		out = append(out, m+": write `code` in documents and comments, \"text\" or %q in messages")
	}
	return out
}

var allWords = flag.Bool("words", false, "list every unwanted word")

// Every tracked text file is written in standard English.
func TestWords(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root(t)
	list, err := cmd.Output()
	if err != nil {
		t.Skipf("not run: git ls-files: %v", err)
	}
	rules, shown := wordRules(t), 0
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if notOurs.MatchString(name) {
			continue
		}
		if bad := unwanted(rules, name); len(bad) > 0 {
			t.Errorf("%s: name of the file: %s", name, strings.Join(bad, "; "))
		}
		data, err := os.ReadFile(filepath.Join(root(t), name))
		if os.IsNotExist(err) || bytes.IndexByte(data, 0) >= 0 {
			continue // deleted and not committed, or not text
		}
		if err != nil {
			t.Fatal(err)
		}
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			for _, bad := range unwanted(rules, line) {
				if shown++; shown <= 50 || *allWords {
					t.Errorf("%s:%d: %s", name, number, bad)
				}
			}
		}
	}
	if shown > 50 && !*allWords {
		t.Errorf("and %d more; -words lists all", shown-50)
	}
}

func TestUnwantedFindsPlantedWords(t *testing.T) {
	rules := wordRules(t)
	for line, want := range map[string]int{
		"the door for Redis clients":    1,
		"func newDoor() {":              1,
		`Door: prometheus.Labels{}`:     1,
		"door_open":                     1,
		"run «make test»":               1,
		"doorstep, indoors":             0,
		"unsynchronised":                1,
		"synchronized":                  0,
		"26 characters, upper or lower": 0,
		"an ID has 13 letters":          1,
		"upper-case letters":            0,
		"the neighbour's behaviour":     2,
		"a neighbor":                    0,
	} {
		if got := unwanted(rules, line); len(got) != want {
			t.Errorf("%q: %q, want %d", line, got, want)
		}
	}
}
