package archtest

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/flakelease/allocator/chaos/fatal"
)

// wordRule is a line of words.txt.
type wordRule struct {
	word    *regexp.Regexp
	firsts  []string // the first word of each text that word finds, in lower case
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
		parsed, err := syntax.Parse(f[0], syntax.Perl)
		if err != nil {
			t.Fatalf("words.txt: %v", err)
		}
		for _, found := range expand(t, parsed) {
			r.firsts = append(r.firsts, strings.FieldsFunc(found, notInWord)[0])
		}
		if len(f) == 3 {
			r.except = regexp.MustCompile(f[2])
		}
		out = append(out, r)
	}
	return out
}

// expand returns all texts that an expression without repetition matches.
func expand(t *testing.T, e *syntax.Regexp) (out []string) {
	t.Helper()
	switch e.Op {
	case syntax.OpLiteral:
		return []string{string(e.Rune)}
	case syntax.OpCharClass:
		for i := 0; i < len(e.Rune); i += 2 {
			for r := e.Rune[i]; r <= e.Rune[i+1]; r++ {
				out = append(out, string(r))
			}
		}
	case syntax.OpEmptyMatch:
		return []string{""}
	case syntax.OpQuest:
		return append(expand(t, e.Sub[0]), "")
	case syntax.OpCapture:
		return expand(t, e.Sub[0])
	case syntax.OpAlternate:
		for _, sub := range e.Sub {
			out = append(out, expand(t, sub)...)
		}
	case syntax.OpConcat:
		out = []string{""}
		for _, sub := range e.Sub {
			var longer []string
			for _, begin := range out {
				for _, end := range expand(t, sub) {
					longer = append(longer, begin+end)
				}
			}
			out = longer
		}
	default:
		t.Fatalf("words.txt: %v repeats something: a rule lists words", e)
	}
	return out
}

func notInWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// among returns the rules that may find something in a text: most files have none of the
// words, and there are megabytes of them.
func among(rules []wordRule, text string) (out []wordRule) {
	words := map[string]bool{}
	for word := range strings.FieldsFuncSeq(hump.ReplaceAllString(text, "$1 $2"), notInWord) {
		words[strings.ToLower(word)] = true
	}
	for _, r := range rules {
		if slices.ContainsFunc(r.firsts, func(first string) bool { return words[first] }) {
			out = append(out, r)
		}
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

// conflict is how git marks what it could not merge.
var conflict = regexp.MustCompile(`(?m)^(<<<<<<<|>>>>>>>) `)

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
		fatal.If(t, err)
		if conflict.Match(data) {
			t.Errorf("%s: it has the marks of a merge that was not finished", name)
		}
		few := among(rules, string(data))
		if len(few) == 0 && !quotes.Match(data) {
			continue
		}
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			for _, bad := range unwanted(few, line) {
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
		if got := unwanted(among(rules, line), line); len(got) != want {
			t.Errorf("%q: %q, want %d", line, got, want)
		}
	}
}
