package text

import (
	"strings"
	"testing"
)

func TestTexts(t *testing.T) {
	for name, tc := range map[string]struct{ got, want string }{
		"nothing to hide":        {Printable("node-1 ü"), "node-1 ü"},
		"escapes":                {Printable("a\x1b[2J\n\u202e"), "a\ufffd[2J\ufffd\ufffd"},
		"bytes that are no text": {Printable("a\xff"), "a\ufffd"},
		"a cut":                  {Cut("abcdef", 3), "abc"},
		"a cut in a character":   {Cut("aü", 2), "a"},
		"short enough":           {Cut("ab", 3), "ab"},
		"rounded down":           {Seconds(15_099), "15.0s"},
		"nearly nothing":         {Seconds(99), "0.0s"},
		"past":                   {Seconds(-150), "-0.2s"},
		"one":                    {Count(1, "node"), "1 node"},
		"none":                   {Count(0, "node"), "0 nodes"},
		"no name":                {List(nil), ""},
		"a name":                 {List([]string{"a"}), "a"},
		"two names":              {List([]string{"a", "b"}), "a and b"},
		"three names":            {List(strings.Fields("a b c")), "a, b and c"},
		"many names":             {List(strings.Fields("a b c d e")), "a, b, c and 2 more"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q, want %q", name, tc.got, tc.want)
		}
	}
}
