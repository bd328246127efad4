package text

import (
	"strings"
	"testing"
	"time"
)

// TestSaid: each kind of problem is logged once a minute, also while several alternate.
func TestSaid(t *testing.T) {
	var said Said
	for _, step := range []struct {
		second  int
		problem string
		want    bool
	}{
		{0, "no answer in 10s", true}, {1, "no answer in 11s", false}, {2, "refused", true}, {3, "no answer in 10s", false},
		{4, "refused", false}, {60, "no answer", true}, {61, "no answer", false}, {62, "refused", true},
	} {
		if got := said.New(step.problem, time.Unix(int64(step.second), 0)); got != step.want {
			t.Errorf("%d s, %s: %v", step.second, step.problem, got)
		}
	}
	if len(said) != 2 {
		t.Errorf("it keeps %v", said)
	}
}

func TestTexts(t *testing.T) {
	for name, tc := range map[string]struct{ got, want string }{
		"nothing to hide":        {Printable("node-1 ü"), "node-1 ü"},
		"escapes":                {Printable("a\x1b[2J\n\u202e"), "a\ufffd[2J\ufffd\ufffd"},
		"bytes that are no text": {Printable("a\xff"), "a\ufffd"},
		"a kind":                 {Kind("at 01:06:13Z, 52m3s ahead of 2 nodes"), "at ahead of nodes"},
		"a cut":                  {Cut("abcdef", 3), "abc"},
		"a cut in a character":   {Cut("aü", 2), "a"},
		"short enough":           {Cut("ab", 3), "ab"},
		"rounded down":           {Seconds(15_099), "15.0s"},
		"nearly nothing":         {Seconds(99), "0.0s"},
		"days":                   {Seconds(5_270_281_100), "60 days"},
		"past":                   {Seconds(-150), "-0.2s"},
		"one":                    {Count(1, "node"), "1 node"},
		"none":                   {Count(0, "node"), "0 nodes"},
		"no name":                {List(nil), ""},
		"a name":                 {List([]string{"a"}), "a"},
		"two names":              {List([]string{"a", "b"}), "a and b"},
		"three names":            {List(strings.Fields("a b c")), "a, b and c"},
		"no port":                {NotHostPort("::1x", "9000"), `"::1x" is not host:port`},
		"a host alone":           {NotHostPort("db1", "9000"), `"db1" is not host:port: write db1:9000`},
		"a path":                 {NotHostPort("/run/a.sock", ""), `"/run/a.sock" is not host:port: for a Unix socket write unix:/path`},
		"a URL":                  {NotHostPort("http://h:9000/", ""), `"http://h:9000/" is not host:port: write h:9000, without http://`},
		"a name mistyped":        {Nearest("cuont", []string{"after", "count"}), "count"},
		"a short name mistyped":  {Nearest("ass", []string{"ca", "as"}), "as"},
		"another short name":     {Nearest("foo", []string{"ca", "as"}), ""},
		"another name":           {Nearest("since", []string{"follow", "after", "new"}), ""},
		"many names":             {List(strings.Fields("a b c d e")), "a, b, c and 2 more"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q, want %q", name, tc.got, tc.want)
		}
	}
}

func TestSpan(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		0: "0s", 1234567 * time.Nanosecond: "1ms", 90*time.Second + time.Millisecond: "1m30s", 47 * time.Hour: "47h0m0s",
		48 * time.Hour: "2 days", 729 * day: "729 days", 730 * day: "2 years", 2399947 * time.Hour: "273 years", -15 * day: "-15 days",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
