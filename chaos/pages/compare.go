package pages

import (
	"fmt"
	"regexp"
	"strings"
)

// shapes are what differs from run to run and is compared by its shape alone. An ID
// stays one of its form, and 0 is never another number.
var shapes = []struct {
	pattern *regexp.Regexp
	shape   string
}{
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "<UUID>"},
	{regexp.MustCompile(`\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b`), "<ULID>"},
	{regexp.MustCompile(`\b[0-7][0-9A-HJKMNP-TV-Z]{12}\b`), "<ID>"},
	{regexp.MustCompile(`\b[0-9]{16,19}\b`), "<INT>"},
	{regexp.MustCompile(`\b(0x[0-9A-F]{8,}|[0-9a-f]{20})\b`), "<HEX>"},
	{regexp.MustCompile(`\b20[0-9]{2}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]+)?`), "<TIME>"},
	{regexp.MustCompile(`[+-]?\b([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?(ns|µs|ms|s)\b`), "<DURATION>"},
	{regexp.MustCompile(`(127\.0\.0\.1|localhost):[0-9]+`), "<ADDRESS>"},
	// The number of a sid or of entropy may be in words, in JSON or in the table of status.
	{regexp.MustCompile(`(\b(?:sid|entropy)"? *[:=]? *|\bnode-[0-9]+ +(?:[a-zA-Z_]+ +)?)[0-9]+\b`), "$1<N>"},
	{regexp.MustCompile(`\b([1-9][0-9]{0,2}(,[0-9]{3})+|[1-9][0-9]{3,})\b`), "<MANY>"},
	{regexp.MustCompile(`[ \t]+`), " "}, // columns are as wide as their content
}

func lines(text string) []string {
	for _, s := range shapes {
		text = s.pattern.ReplaceAllString(text, s.shape)
	}
	out := strings.Split(strings.Trim(text, "\n"), "\n")
	for i := range out {
		out[i] = strings.TrimRight(out[i], " \r")
	}
	return out
}

// Compare returns nil if got is what a page shows as want. IDs, times, durations,
// addresses, sids and numbers of four or more digits need only have the same shape.
// In want, "…" within a line stands for anything, and as a line for any lines.
func Compare(got, want string) error {
	if g, w := lines(got), lines(want); !same(g, w) {
		n := 0
		for n < len(w) && (w[n] == "…" || n < len(g) && same(g[n:n+1], w[n:n+1])) {
			n++
		}
		first := "nothing more"
		if n < len(w) {
			first = fmt.Sprintf("%q", w[n])
		}
		return fmt.Errorf("printed\n%s\nand the page shows\n%s\n(compared by shape; the first difference is at %s)",
			got, want, first)
	}
	return nil
}

func same(got, want []string) bool {
	for len(want) > 0 {
		if want[0] == "…" {
			for i := range len(got) + 1 {
				if same(got[i:], want[1:]) {
					return true
				}
			}
			return false
		}
		if len(got) == 0 || !alike(got[0], want[0]) {
			return false
		}
		got, want = got[1:], want[1:]
	}
	return len(got) == 0
}

func alike(got, want string) bool {
	parts := strings.Split(want, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	ok, err := regexp.MatchString("^"+strings.Join(parts, ".*")+"$", got)
	return ok && err == nil
}
