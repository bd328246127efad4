package httpserver_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/ulid"
)

const jsonType = "application/json"

// TestBadInput: what is malformed is refused with a status and reason of its
// own, burns no ID, and is counted.
//
// Incident T39 (IDs as JSON numbers), docs/INCIDENTS.md.
func TestBadInput(t *testing.T) {
	body := func(s string) [3]string { return [3]string{"/v1/ids", s, jsonType} }
	query := func(s string) [3]string { return [3]string{"/v1/ids?" + s} }
	for _, c := range []struct {
		name   string
		in     [3]string // target, body, content type
		status int
		reason string
		class  string
	}{
		{"no number", query("count=five"), 400, "INVALID_COUNT", ""},
		{"empty count", query("count="), 400, "INVALID_COUNT", ""},
		{"plus", query("count=%2B5"), 400, "INVALID_COUNT", ""},
		{"blank", query("count=+5"), 400, "INVALID_COUNT", ""},
		{"fraction", query("count=1.0"), 400, "INVALID_COUNT", ""},
		{"exponent", query("count=1e3"), 400, "INVALID_COUNT", ""},
		{"hexadecimal", query("count=0x10"), 400, "INVALID_COUNT", ""},
		{"above HTTP's limit", query("count=10001"), 400, "INVALID_COUNT", ""},
		{"beyond 64 bits", query("count=99999999999999999999"), 400, "INVALID_COUNT", ""},
		{"wraps to 1", query("count=18446744073709551617"), 400, "INVALID_COUNT", ""},
		{"other digits", query("count=%D9%A5"), 400, "INVALID_COUNT", ""},
		{"unknown form", query("as=uuidv4"), 400, "INVALID_FORMAT", ""},
		{"upper-case form", query("as=ULID"), 400, "INVALID_FORMAT", ""},
		{"empty form", query("as="), 400, "INVALID_FORMAT", ""},
		{"unknown field", query("cuont=5"), 400, "INVALID_FORMAT", ""},
		{"upper-case field", query("Count=5"), 400, "INVALID_FORMAT", ""},
		{"twice", query("count=1&count=1"), 400, "INVALID_FORMAT", ""},
		{"bad escape", query("count=%zz"), 400, "INVALID_FORMAT", ""},
		{"semicolon", query("count=1;as=int"), 400, "INVALID_FORMAT", ""},
		{"short ID", query("after=ABC"), 400, "INVALID_ID", "bad_length"},
		{"empty ID", query("after="), 400, "INVALID_ID", "bad_length"},
		{"bad letter", query("after=01XA2VP00000U"), 400, "INVALID_ID", "bad_char"},
		{"65 bits", query("after=81XA2VP000007"), 400, "INVALID_ID", "overflow"},
		{"63 bits and more", query("after=9223372036854775808"), 400, "INVALID_ID", "out_of_range"},
		{"a ULID of another origin", query("after=01ARZ3NDEKTSV4RRFFQ69G5FAV"), 400, "INVALID_ID", "not_v7"},
		{"a UUIDv4", query("after=f47ac10b-58cc-4372-a567-0e02b2c3d479"), 400, "INVALID_ID", "not_v7"},
		{"a UUIDv7 before the epoch", query("after=017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), 400, "INVALID_ID", "time_before_epoch"},
		{"a UUID with braces", query("after=%7B017f22e2-79b0-7cc3-98c4-dc0c0c0739%7D"), 400, "INVALID_ID", "bad_uuid"},
		{"count before form", query("as=x&count=0&after=x"), 400, "INVALID_COUNT", ""},
		{"form before ID", query("as=x&after=x"), 400, "INVALID_FORMAT", ""},

		{"query and body", [3]string{"/v1/ids?count=1", `{"count":1}`, jsonType}, 400, "INVALID_FORMAT", ""},
		{"no JSON", body(`count=5`), 400, "INVALID_FORMAT", ""},
		{"no object", body(`[1]`), 400, "INVALID_FORMAT", ""},
		{"null", body(`null`), 400, "INVALID_FORMAT", ""},
		{"blanks", body(` `), 400, "INVALID_FORMAT", ""},
		{"cut off", body(`{"count":1`), 400, "INVALID_FORMAT", ""},
		{"comma at the end", body(`{"count":1,}`), 400, "INVALID_FORMAT", ""},
		{"no colon", body(`{"count" 1}`), 400, "INVALID_FORMAT", ""},
		{"two objects", body(`{"count":1}{"count":2}`), 400, "INVALID_FORMAT", ""},
		{"garbage behind", body(`{"count":1} x`), 400, "INVALID_FORMAT", ""},
		{"unknown name", body(`{"count":1,"foo":2}`), 400, "INVALID_FORMAT", ""},
		{"upper-case name", body(`{"COUNT":1}`), 400, "INVALID_FORMAT", ""},
		{"name twice", body(`{"count":1,"count":1}`), 400, "INVALID_FORMAT", ""},
		{"name twice, once null", body(`{"count":null,"count":1}`), 400, "INVALID_FORMAT", ""},
		{"name twice, once escaped", body(`{"count":1,"\u0063ount":1}`), 400, "INVALID_FORMAT", ""},
		{"count as a string", body(`{"count":"5"}`), 400, "INVALID_COUNT", ""},
		{"count as a fraction", body(`{"count":1.5}`), 400, "INVALID_COUNT", ""},
		{"count with a zero fraction", body(`{"count":1.0}`), 400, "INVALID_COUNT", ""},
		{"count with an exponent", body(`{"count":1e2}`), 400, "INVALID_COUNT", ""},
		{"count beyond numbers", body(`{"count":1e999}`), 400, "INVALID_COUNT", ""},
		{"count as true", body(`{"count":true}`), 400, "INVALID_COUNT", ""},
		{"count as an array", body(`{"count":[1]}`), 400, "INVALID_COUNT", ""},
		{"form as a number", body(`{"as":1}`), 400, "INVALID_FORMAT", ""},
		{"after as a number", body(`{"after":137438953472}`), 400, "INVALID_ID", "bad_type"},
		{"after as an object", body(`{"after":{}}`), 400, "INVALID_ID", ""},
		{"a form's type", [3]string{"/v1/ids", "count=5", "application/x-www-form-urlencoded"}, 415, "INVALID_FORMAT", ""},
		{"no type", [3]string{"/v1/ids", `{"count":5}`, ""}, 415, "INVALID_FORMAT", ""},
		{"bad type", [3]string{"/v1/ids", `{"count":5}`, "application/json; ="}, 415, "INVALID_FORMAT", ""},
		{"4 KiB and more", body(`{"after":"` + strings.Repeat("0", 4<<10) + `"}`), 413, "INVALID_FORMAT", ""},
		{"deep", body(strings.Repeat(`{"as":`, 500) + "1" + strings.Repeat("}", 500)), 400, "INVALID_FORMAT", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := servertest.New(t)
			var header []string
			if c.in[2] != "" {
				header = []string{"Content-Type", c.in[2]}
			}
			res := env.Do("POST", c.in[0], c.in[1], header...)
			p := servertest.Body[servertest.Problem](t, res)
			if res.StatusCode != c.status || p.Status != c.status || p.Reason != c.reason || p.Metadata["class"] != c.class {
				t.Errorf("got %d, %+v\nwant %d, %s, class %q", res.StatusCode, p, c.status, c.reason, c.class)
			}
			if c.reason == "INVALID_COUNT" && c.in[1] == "" && p.Metadata["limit"] != "10000" {
				t.Errorf("limit %q", p.Metadata["limit"])
			}
			st := env.Node.Stats()
			if st.Issued != 0 || st.Lead != 0 {
				t.Errorf("%d IDs issued", st.Issued)
			}
			var counted int64
			for _, n := range st.Refused {
				counted += n
			}
			if counted != 1 {
				t.Errorf("counted %d refusals", counted)
			}
		})
	}
}

// TestMeantField: an unknown field that is like one of the fields names it.
func TestMeantField(t *testing.T) {
	for name, want := range map[string]string{"cuont": "did you mean count?", "afetr": "did you mean after?", "foo": "use count, as, after"} {
		env := servertest.New(t)
		for _, res := range []*http.Response{
			env.Do("POST", "/v1/ids?"+name+"=5", ""), env.Do("POST", "/v1/ids", `{"`+name+`":5}`, "Content-Type", jsonType),
		} {
			if p := servertest.Body[servertest.Problem](t, res); !strings.Contains(p.Detail, want) {
				t.Errorf("%s: %q, want %q", name, p.Detail, want)
			}
		}
	}
}

// TestGoodInput: what is allowed although it may look odd.
func TestGoodInput(t *testing.T) {
	for _, c := range []struct {
		name, target, body, contentType string
		count                           int
	}{
		{"nothing", "/v1/ids", "", "", 1},
		{"empty query", "/v1/ids?", "", "", 1},
		{"empty body of a form", "/v1/ids?count=2", "", "application/x-www-form-urlencoded", 2},
		{"empty object", "/v1/ids", "{}", jsonType, 1},
		{"charset", "/v1/ids", `{"count":2}`, "application/json; charset=utf-8", 2},
		{"upper-case type", "/v1/ids", `{"count":2}`, "Application/JSON", 2},
		{"blanks around", "/v1/ids", " {\"count\" : 2 }\n", jsonType, 2},
		{"nulls", "/v1/ids", `{"count":null,"as":null,"after":null}`, jsonType, 1},
		{"zeros in front", "/v1/ids?count=0003", "", "", 3},
		{"ampersands", "/v1/ids?&count=3&", "", "", 3},
		{"escapes", "/v1/ids?%63ount=%33", "", "", 3},
		{"after zero", "/v1/ids?after=0", "", "", 1},
		{"lower case", "/v1/ids?after=00cmxb6tak4sa", "", "", 1},
		{"the most", "/v1/ids?count=10000&as=uuid", "", "", 10_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := servertest.New(t)
			res := env.Do("POST", c.target, c.body, "Content-Type", c.contentType)
			if res.StatusCode != 200 {
				t.Fatalf("%d: %+v", res.StatusCode, servertest.Body[servertest.Problem](t, res))
			}
			a := servertest.Body[servertest.Issued](t, res)
			if len(a.IDs) != c.count || a.Node != "node-a" || a.SID != 7 {
				t.Errorf("%d IDs of %s, sid %d; want %d", len(a.IDs), a.Node, a.SID, c.count)
			}
		})
	}
}

// TestForms: every form of one allocation reads back as the same flakes, and
// wide IDs of one flake differ in their random bits.
func TestForms(t *testing.T) {
	read := map[string]func(string) (flake.ID, error){
		"flake": flake.Parse,
		"int":   flake.ParseInt,
		"ulid": func(s string) (flake.ID, error) {
			id, err := ulid.Parse(s)
			if err != nil {
				return 0, err
			}
			return id.Flake(flake.Default)
		},
		"uuid": func(s string) (flake.ID, error) {
			id, err := ulid.ParseUUID(s)
			if err != nil {
				return 0, err
			}
			return id.Flake(flake.Default)
		},
	}
	want := make([]flake.ID, 100)
	b, err := servertest.New(t).Node.Next(t.Context(), len(want), 0)
	fatal.If(t, err)
	b.Fill(want)
	for form, parse := range read {
		for _, lines := range []bool{false, true} {
			env := servertest.New(t)
			accept, contentType := "*/*", "application/json"
			if lines {
				accept, contentType = "text/plain", "text/plain; charset=utf-8"
			}
			res := env.Do("POST", "/v1/ids?count=100&as="+form, "", "Accept", accept)
			if got := res.Header.Get("Content-Type"); got != contentType {
				t.Errorf("Content-Type %q", got)
			}
			var texts []string
			if lines {
				text, _ := io.ReadAll(res.Body)
				if !strings.HasSuffix(string(text), "\n") {
					t.Error("the last line is not ended")
				}
				texts = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			} else {
				texts = servertest.Body[servertest.Issued](t, res).IDs
			}
			var got []flake.ID
			for _, text := range texts {
				id, err := parse(text)
				fatal.If(t, err)
				got = append(got, id)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, lines %t: got %d IDs from %v, want %d from %v", form, lines, len(got), got[:1], len(want), want[0])
			}
			if form != "int" && !slices.IsSorted(texts) {
				t.Errorf("texts of %s are not sorted", form)
			}
		}
	}
	random := make(map[string]bool)
	for _, id := range servertest.Body[servertest.Issued](t, servertest.New(t).Do("POST", "/v1/ids?as=uuid&count=50", "")).IDs {
		random[id[22:]] = true // behind the variant and the flake's last bits
	}
	if len(random) != 50 {
		t.Errorf("%d different random parts in a batch of 50", len(random))
	}
	clear(random)
	for range 50 { // the same flake each time
		id := servertest.Body[servertest.Issued](t, servertest.New(t).Do("POST", "/v1/ids?as=uuid", "")).IDs[0]
		random[id[20:]] = true
	}
	if len(random) != 50 {
		t.Errorf("%d different random parts in 50", len(random))
	}
}

// TestNumbers: where IDs have at most 53 bits they come as JSON numbers, and may come
// back as such.
func TestNumbers(t *testing.T) {
	at := clock.Millis(flake.DefaultEpoch + 10)
	env := servertest.NewOn(t, node.New(node.Config{
		Name: "node-a", Gen: gen.Config{Layout: flake.JS53, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250},
	}, clocktest.NewManual(at), gen.Random()))
	env.Node.Begin(lease.Grant{SID: 7, Term: 1, Base: at, Ceil: at + 1000})
	for _, c := range []struct{ query, body, accept, want string }{
		{"?as=number&count=2", "", "*/*", `{"ids":[41856,41857],"node":"node-a","sid":7}`},
		{"?as=number&count=2", "", "text/plain", "41858\n41859"},
		{"?as=int", "", "*/*", `{"ids":["41860"],"node":"node-a","sid":7}`},
		{"", `{"as":"number","after":41900}`, "*/*", `{"ids":[41901],"node":"node-a","sid":7}`},
		{"", `{"as":"number","after":41901.0}`, "*/*", "INVALID_ID"},
		{"", `{"as":"number","after":9007199254740992}`, "*/*", "has more than the 53 bits of layout js53"},
		{"", `{"as":"number","after":-1}`, "*/*", "INVALID_ID"},
		{"?count=129", "", "*/*", "ask for 1 to 128, which is what a sid has in 1ms of layout js53"},
	} {
		res := env.Do("POST", "/v1/ids"+c.query, c.body, "Accept", c.accept, "Content-Type", "application/json")
		b, err := io.ReadAll(res.Body)
		if got := strings.TrimSuffix(string(b), "\n"); err != nil || got != c.want && (res.StatusCode == 200 || !strings.Contains(got, c.want)) {
			t.Errorf("%s%s: %s, %v, want %s", c.query, c.body, got, err, c.want)
		}
	}
	res := servertest.New(t).Do("POST", "/v1/ids?as=number", "")
	if p := servertest.Body[servertest.Problem](t, res); p.Reason != "INVALID_FORMAT" || !strings.Contains(p.Detail, "use int, which is a string") {
		t.Errorf("in layout scalable: %+v", p)
	}
}

func TestRoutes(t *testing.T) {
	env := servertest.New(t)
	for _, c := range []struct {
		method, target string
		status         int
		allow, help    string
	}{
		{"GET", "/v1/ids", 405, "POST", "curl -X POST 'http://example.com/v1/ids?count=1'"},
		{"GET", "/v1/ids?count=5", 405, "POST", "curl -X POST"},
		{"HEAD", "/v1/ids", 405, "POST", ""},
		{"PUT", "/v1/ids", 405, "POST", "curl"},
		{"OPTIONS", "/v1/ids", 405, "POST", "curl"},
		{"POST", "/v1/ids/1", 405, "GET, HEAD", "curl"},
		{"DELETE", "/v1/cluster", 405, "GET, HEAD", "curl"},
		{"POST", "/openapi.yaml", 405, "GET, HEAD", "curl"},
		{"GET", "/", 404, "", "listen.admin"},
		{"POST", "/v1/id", 404, "", "/v1/ids"},
		{"GET", "/v1/ids/", 404, "", "/v1/ids"},
	} {
		res := env.Do(c.method, c.target, "")
		p := servertest.Body[servertest.Problem](t, res)
		if res.StatusCode != c.status || res.Header.Get("Allow") != c.allow || !strings.Contains(p.Help, c.help) ||
			res.Header.Get("Content-Type") != "application/problem+json" || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: %d %v %+v", c.method, c.target, res.StatusCode, res.Header, p)
		}
	}
	if res := env.Do("GET", "/openapi.yaml", ""); res.StatusCode != 200 {
		t.Errorf("openapi.yaml: %d", res.StatusCode)
	}
	if n := env.Node.Stats().Issued; n != 0 {
		t.Errorf("%d IDs issued", n)
	}
}

func TestHTTPServerLimits(t *testing.T) {
	s := httpserver.NewServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes != 4<<10 {
		t.Errorf("%+v", s)
	}
}

// TestCallerLeft: a request whose caller has gone issues nothing.
func TestCallerLeft(t *testing.T) {
	env := servertest.New(t)
	req := httptest.NewRequest("POST", "/v1/ids", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res := env.Send(req.WithContext(ctx))
	if res.StatusCode != 503 || env.Node.Stats().Issued != 0 {
		t.Errorf("%d, %d IDs issued", res.StatusCode, env.Node.Stats().Issued)
	}
}

// TestProblemTypesAreServed: the type of a problem is a page of the node that answered.
func TestProblemTypesAreServed(t *testing.T) {
	env := servertest.New(t)
	p := servertest.ProblemIn(env.Do("POST", "/v1/ids?count=0", ""))
	page, reason, _ := strings.Cut(p.Type, "#")
	res := env.Do("GET", page, "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	body, err := io.ReadAll(res.Body)
	fatal.If(t, err)
	if res.StatusCode != 200 || reason != p.Reason || !strings.Contains(string(body), `id="`+reason+`"`) {
		t.Errorf("%s: %d %.200s", p.Type, res.StatusCode, body)
	}
}
