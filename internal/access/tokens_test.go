package access

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

func TestParseTokens(t *testing.T) {
	good := line("shop", "issue", "t")
	hash := strings.Fields(good)[2]
	for _, tc := range []struct {
		name, file string
		want       error
		line       int
	}{
		{"comments, spaces and empty lines", "# who\n\n  " + good + "\t\nx  issue,read\t" + strings.Fields(line("x", "issue", "u"))[2], nil, 0},
		{"line ends of Windows", strings.ReplaceAll(good, "\n", "\r\n"), nil, 0},
		{"one name twice, to change a token", good + line("shop", "issue", "u"), nil, 0},
		{"upper-case hex", "shop issue sha256:" + strings.ToUpper(strings.TrimPrefix(hash, "sha256:")), nil, 0},
		{"nothing", "", ErrEmpty, 0},
		{"comments alone", "# nobody\n", ErrEmpty, 0},
		{"two fields", "shop " + hash, ErrFields, 1},
		{"four fields", good[:len(good)-1] + " # shop", ErrFields, 1},
		{"a name of other characters", "Shop issue " + hash, ErrName, 1},
		{"a long name", strings.Repeat("s", 64) + " issue " + hash, ErrName, 1},
		{"no such scope", good + "\nx write " + hash, ErrScope, 3},
		{"a scope twice", "x issue,issue " + hash, ErrScope, 1},
		{"an empty scope", "x issue, " + hash, ErrScope, 1},
		{"a scope in capitals", "x Issue " + hash, ErrScope, 1},
		{"the token itself", "x issue allocator_SECRET", ErrHash, 1},
		{"a hash without its name", "x issue " + strings.TrimPrefix(hash, "sha256:"), ErrHash, 1},
		{"a short hash", "x issue " + hash[:len(hash)-2], ErrHash, 1},
		{"a hash of other characters", "x issue " + hash[:len(hash)-1] + "g", ErrHash, 1},
		{"workers", good[:len(good)-1] + " workers=1\n" + strings.TrimSuffix(line("x", "worker", "u"), "\n") + "  workers=1024", nil, 0},
		{"no workers", good[:len(good)-1] + " workers=0", ErrWorkers, 1},
		{"too many workers", good[:len(good)-1] + " workers=1025", ErrWorkers, 1},
		{"workers in words", good[:len(good)-1] + " workers=SECRET", ErrWorkers, 1},
		{"another fourth field", good[:len(good)-1] + " SECRET", ErrWorkers, 1},
		{"a token twice", good + "# again\nother read " + hash, ErrTwice, 3},
		{"too large", "#" + strings.Repeat("x", MaxTokenFile), ErrTooLarge, 0},
	} {
		tokens, err := ParseTokens([]byte(tc.file))
		if err == nil {
			err = tokens.Problem()
		}
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		at, _ := errors.AsType[*LineError](err)
		if tc.line > 0 && (at == nil || at.Line != tc.line) || tc.line == 0 && at != nil {
			t.Errorf("%s: %v, want line %d", tc.name, err, tc.line)
		}
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v shows what is in the file", tc.name, err)
		}
	}
	var many strings.Builder
	for i := range MaxTokens + 1 {
		many.WriteString(line("x", "issue", fmt.Sprint(i)))
	}
	if tokens := parse(t, many.String()); !errors.Is(tokens.Problem(), ErrTooMany) || tokens.Len() != MaxTokens {
		t.Errorf("many: %v", tokens.Problem())
	}
}

// A line with an error changes nothing about the others: tokens whose lines are gone are
// revoked, and tokens whose lines are good are accepted.
func TestLinesWithErrorsAreSkipped(t *testing.T) {
	good, revoked := line("shop", "issue", "ts"), line("ex", "issue", "te")
	g := New(Config{Tokens: parse(t, good+revoked)})
	ex, err := g.Identify(Credentials{Token: "te"})
	fatal.If(t, err)
	tokens := parse(t, "shopp\n"+good+"x wrong sha256:00\n\ny issue sha256:00\n"+line("shop", "admin", "ts"))
	g.SetTokens(tokens)
	if err := g.Allow(ex, Issue); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("a token whose line is gone: %v", err)
	}
	c, err := g.Identify(Credentials{Token: "ts"})
	if err != nil || g.May(c, Issue) != nil || g.May(c, Admin) == nil {
		t.Errorf("a token whose first line is good: %v, admin %v", err, g.May(c, Admin))
	}
	if at, _ := errors.AsType[*LineError](tokens.Problem()); at == nil || at.Line != 1 || at.More != 3 || !strings.HasPrefix(at.Error(), "line 1 and 3 more: ") {
		t.Errorf("problem: %v", tokens.Problem())
	}
	g.SetTokens(parse(t, ""))
	if err := g.Allow(c, Issue); !errors.Is(err, ErrUnknownToken) || !g.NeedsToken() {
		t.Errorf("an emptied file: %v", err)
	}
}

func TestNewToken(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token, l, err := NewToken("shop", "read,issue")
		fatal.If(t, err)
		if seen[token] || strings.Contains(l, token) {
			t.Fatalf("%s again, or in %q", token, l)
		}
		seen[token] = true
		g := New(Config{Tokens: parse(t, l)})
		c, err := g.Identify(Credentials{Token: token})
		if err != nil || c.Name() != "shop" || g.Allow(c, Issue) != nil || g.Allow(c, Read) != nil || g.Allow(c, Admin) == nil {
			t.Fatalf("%q: %v", l, err)
		}
	}
	if _, _, err := NewToken("Shop", "read"); !errors.Is(err, ErrName) {
		t.Error(err)
	}
	if _, _, err := NewToken("shop", "everything"); !errors.Is(err, ErrScope) {
		t.Error(err)
	}
}

func TestBearer(t *testing.T) {
	for _, tc := range []struct {
		header, token string
		want          error
	}{
		{"Bearer abc", "abc", nil},
		{"bearer abc", "abc", nil},
		{"BEARER   abc  ", "abc", nil},
		{"Bearer a.b-c_d~e+f/g==", "a.b-c_d~e+f/g==", nil},
		{"", "", ErrNoToken},
		{"Bearer", "", ErrMalformed},
		{"Bearer ", "", ErrMalformed},
		{"Bearer =", "", ErrMalformed},
		{"Bearer\tabc", "", ErrMalformed},
		{" Bearer abc", "", ErrMalformed},
		{"Bearer abc def", "", ErrMalformed},
		{"Bearer abc,def", "", ErrMalformed},
		{"Bearer: abc", "", ErrMalformed},
		{"Bearer \"abc\"", "", ErrMalformed},
		{"Bearer ab=c", "", ErrMalformed},
		{"Basic abc", "", ErrMalformed},
		{"abc", "", ErrMalformed},
		{"Bearer abc\u00e9", "", ErrMalformed},
		{"Bearer " + strings.Repeat("a", maxToken), strings.Repeat("a", maxToken), nil},
		{"Bearer " + strings.Repeat("a", maxToken+1), "", ErrMalformed},
	} {
		token, err := Bearer(tc.header)
		if token != tc.token || !errors.Is(err, tc.want) {
			t.Errorf("%.40q: %.40q, %v; want %.40q, %v", tc.header, token, err, tc.token, tc.want)
		}
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte(line("shop", "issue,read", "t") + "# c\n\n" + line("root", "admin", "u")))
	f.Add([]byte("shop issue sha256:00"))
	f.Add([]byte("\xff\x00\r\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		tokens, err := ParseTokens(file)
		if err != nil {
			return
		}
		if tokens.Len() > MaxTokens || tokens.Len() == 0 && tokens.Problem() == nil {
			t.Fatalf("%d tokens, problem %v", tokens.Len(), tokens.Problem())
		}
		// What was read is written and read again as the same.
		var again strings.Builder
		for _, e := range tokens.entries {
			if e.scopes == 0 || e.scopes.has(Admin) && e.scopes != allScopes {
				t.Fatalf("scopes %b", e.scopes)
			}
			fmt.Fprintf(&again, "%s %s sha256:%x\n", e.name, e.scopes, e.sum)
		}
		second, err := ParseTokens([]byte(again.String()))
		if err != nil || len(second.entries) != len(tokens.entries) || tokens.Len() > 0 && second.Problem() != nil {
			t.Fatalf("%q: %v", again.String(), err)
		}
		for i, e := range second.entries {
			if e != tokens.entries[i] || second.find(&e.sum) != &second.entries[i] {
				t.Fatalf("%+v, want %+v", e, tokens.entries[i])
			}
		}
	})
}

func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer abc", "bearer  a==", "Basic x", "Bearer", "Bearer a,b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		token, err := Bearer(header)
		if (err == nil) != (token != "") {
			t.Fatalf("%q, %v", token, err)
		}
		if err != nil {
			return
		}
		if strings.ContainsAny(token, " \t\r\n,\"") || len(token) > maxToken {
			t.Fatalf("%q", token)
		}
		if again, err := Bearer("Bearer " + token); err != nil || again != token {
			t.Fatalf("%q: %q, %v", token, again, err)
		}
	})
}
