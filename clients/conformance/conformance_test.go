package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestGo holds package client to the table.
func TestGo(t *testing.T) {
	var out strings.Builder
	failed, err := check(t.Context(), inside(serveGo), "go", regexp.MustCompile(""), &out)
	if err != nil || failed > 0 {
		t.Errorf("%d situations failed, %v", failed, err)
	}
	t.Log("\n" + out.String())
}

// TestDriversOfOthers holds the packages of other languages to it.
func TestDriversOfOthers(t *testing.T) {
	tier.Check(t, "programs of other languages")
	for name, command := range map[string][]string{
		"node":         {"node", "../typescript/conformance/driver.mjs"},
		"python":       {"python3", "-B", "../python/conformance/driver.py"},
		"python, sync": {"python3", "-B", "../python/conformance/driver.py", "--sync"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skipf("not run: %s is not installed", command[0])
			}
			d, err := run(t.Context(), command)
			fatal.If(t, err)
			var out strings.Builder
			failed, err := check(t.Context(), d, languageOf(command), regexp.MustCompile(""), &out)
			if err != nil || failed > 0 {
				t.Errorf("%d situations failed, %v", failed, err)
			}
			t.Log("\n" + out.String())
		})
	}
}

// mutants are faults of a client: what becomes of a call before it, and of the answer after it. One row notices each.
var mutants = []struct {
	name    string
	noticed string
	call    func(*call)
	answer  func(c call, a *answer, again func(call) answer)
}{
	{name: "gives an ID twice", noticed: "calls that follow each other get IDs in order", answer: remembers()},
	{name: "loses an ID of many", noticed: "5,000 IDs in one round trip",
		answer: func(_ call, a *answer, _ func(call) answer) {
			a.IDs = a.IDs[:max(0, len(a.IDs)-1)]
		}},
	{name: "gives many IDs in any order", noticed: "5,000 IDs in one round trip",
		answer: func(_ call, a *answer, _ func(call) answer) {
			slices.Reverse(a.IDs)
		}},
	{name: "does not send after", noticed: "an ID above another that the caller has",
		call: func(c *call) { c.After = "" }},
	{name: "judges an after by itself", noticed: "an after of another layout",
		call: func(c *call) { c.After = "-1" }},
	{name: "gives integers whatever was asked for", noticed: "a UUID",
		call: func(c *call) { c.Form = "" }},
	{name: "asks a second time without a token", noticed: "UNAUTHENTICATED is the same at every node and time",
		answer: func(c call, a *answer, again func(call) answer) {
			if a.Error != nil {
				*a = again(c)
			}
		}},
	{name: "sends a request for each call", noticed: "64 calls at once share requests",
		answer: func(c call, a *answer, again func(call) answer) {
			for range c.Count {
				again(call{Op: "next", Client: c.Client})
			}
		}},
	{name: "says of every error that no node answered", noticed: "no node can serve an ID that is too far ahead",
		answer: as("unavailable")},
	{name: "says of every error that the answer was wrong", noticed: "nothing listens",
		answer: as("protocol")},
	{name: "says nothing", noticed: "a negative after",
		answer: func(_ call, a *answer, _ func(call) answer) {
			if a.Error != nil {
				a.Error.Message = ""
			}
		}},
	{name: "has no deadlines of callers", noticed: "a caller's own deadline",
		call: func(c *call) { c.TimeoutMs = 0 }},
	{name: "has no timeout of attempts", noticed: "a node is silent once", call: func(c *call) {
		c.Options.AttemptTimeoutMs, c.Options.TimeoutMs = 3000, 1000
	}},
	{name: "takes what a broken node says", noticed: "more IDs than asked for",
		answer: func(_ call, a *answer, _ func(call) answer) {
			if a.Error != nil {
				*a = answer{IDs: []string{"145000000000000001", "145000000000000002", "145000000000000003"}}
			}
		}},
	{name: "takes IDs of another space", noticed: "a client keeps to the space of the first answer",
		answer: func(_ call, a *answer, _ func(call) answer) {
			if a.Error != nil {
				*a = answer{IDs: []string{"145000000000000001"}}
			}
		}},
	{name: "draws before it is asked", noticed: "no ID is held before a request",
		answer: func(c call, _ *answer, again func(call) answer) {
			if c.Op == "open" {
				again(call{Op: "next", Client: c.Client})
			}
		}},
	{name: "keeps old IDs", noticed: "held IDs that are too old are dropped",
		answer: func(c call, a *answer, _ func(call) answer) {
			if c.Op == "nextNow" && a.Error != nil {
				*a = answer{IDs: []string{"145000000000000001"}}
			}
		}},
	{name: "holds nothing", noticed: "held IDs are distinct, and above earlier ones",
		call: func(c *call) { c.Options.Prefetch = 0 },
		answer: func(c call, a *answer, again func(call) answer) {
			if c.Op == "nextNow" {
				*a = again(call{Op: "next", Client: c.Client})
			}
		}},
	{name: "sends no token", noticed: "a token is sent, and read again from its file",
		call: func(c *call) { c.Options.TokenFile = "" }},
	{name: "trusts nobody", noticed: "TLS by an authority of one's own",
		call: func(c *call) { c.Options.CAFile = "" }},
	{name: "does not cancel", noticed: "a call is canceled",
		call: func(c *call) { c.Call = 0 }},
	{name: "goes on after close", noticed: "a client that is closed", call: func(c *call) {
		if c.Op == "close" {
			c.Op = "watermark"
		}
	}},
	{name: "takes any list of nodes", noticed: "a list of nodes that is wrong",
		answer: func(c call, a *answer, _ func(call) answer) {
			if c.Op == "open" && len(c.GRPC) > 0 {
				a.Error = nil
			}
		}},
	{name: "does not wait for the watermark", noticed: "the watermark", call: func(c *call) {
		if c.Op == "waitFor" {
			c.Op = "watermark"
		}
	}},
	{name: "reads texts leniently", noticed: "the parts of known IDs",
		call: func(c *call) { c.Text = strings.TrimSpace(c.Text) }},
	{name: "permits all", noticed: "a worker number is lent, checked and given back", answer: permits("")},
	{name: "permits what is before the interval", noticed: "a worker number is lent, checked and given back",
		answer: permits("NOT_YET")},
	{name: "permits what is after the interval", noticed: "an extension is late", answer: permits("EXPIRED")},
	{name: "does not know units", noticed: "only units that are in the interval as a whole",
		call: func(c *call) { c.UnitMs = 0 }},
	{name: "does not give a worker back", noticed: "only units that are in the interval as a whole",
		call: func(c *call) {
			if c.Op == "close" {
				c.Op = "watermark"
			}
		}},
	{name: "asks again for a worker that it cannot have", noticed: "WORKER_QUOTA: no worker, at every node and time",
		answer: func(c call, a *answer, again func(call) answer) {
			if a.Error != nil {
				*a = again(c)
			}
		}},
	{name: "takes no worker but at the first node", noticed: "NO_WORKER: another node lends a number",
		call: func(c *call) { c.GRPC, c.Options.TimeoutMs = c.GRPC[:min(1, len(c.GRPC))], 200 }},
	{name: "holds what is lost", noticed: "UNKNOWN_WORKER: the worker is lost",
		answer: func(_ call, a *answer, _ func(call) answer) {
			if a.Error != nil && a.Error.Kind == "lost" {
				a.Error.Kind, a.Error.Reason = "refused", "EXPIRED"
			}
		}},
	{name: "acquires in place of an extension", noticed: "an extension is refused", answer: reacquires()},
	{name: "does not say when to come again", noticed: "a refusal says when to come again",
		answer: func(_ call, a *answer, _ func(call) answer) {
			if a.Error != nil {
				a.Error.RetryAfterMs = 0
			}
		}},
}

// remembers gives the first ID of a client with every third call.
func remembers() func(call, *answer, func(call) answer) {
	first, calls := "", 0
	return func(c call, a *answer, _ func(call) answer) {
		if calls++; c.Op != "next" || len(a.IDs) == 0 {
			return
		} else if first == "" {
			first = a.IDs[0]
		} else if calls%3 == 0 {
			a.IDs[0] = first
		}
	}
}

// permits has IDs used that a worker does not permit for a reason; "": for any.
func permits(reason string) func(call, *answer, func(call) answer) {
	return func(c call, a *answer, _ func(call) answer) {
		if c.Op == "permit" && a.Error != nil && (reason == "" || a.Error.Reason == reason) {
			a.Error = nil
		}
	}
}

// reacquires opens another worker where the one that is held does not permit an ID.
func reacquires() func(call, *answer, func(call) answer) {
	var opened call
	return func(c call, a *answer, again func(call) answer) {
		if c.Op == "worker" {
			opened = c
			opened.Client += ", again"
		} else if c.Op == "permit" && a.Error != nil {
			again(opened)
		}
	}
}

func as(kind string) func(call, *answer, func(call) answer) {
	return func(_ call, a *answer, _ func(call) answer) {
		if a.Error != nil {
			a.Error.Kind, a.Error.Reason = kind, ""
		}
	}
}

// TestMutants: a client with a fault fails.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			d := inside(func(in io.Reader, to io.Writer) error { return proxy(in, to, m.call, m.answer) })
			failed, err := check(t.Context(), d, "go", regexp.MustCompile("^"+regexp.QuoteMeta(m.noticed)+"$"), &out)
			if failed != 1 || err != nil {
				t.Errorf("%d rows failed, %v\n%s", failed, err, &out)
			}
			t.Log(out.String())
		})
	}
}

// proxy is a driver that sends each call on to that of package client.
func proxy(in io.Reader, to io.Writer, before func(*call), after func(call, *answer, func(call) answer)) error {
	d := inside(serveGo)
	var mu sync.Mutex // guards writing, and numbers
	numbers := map[int]int{}
	var work sync.WaitGroup
	ask := func(c call) answer {
		_, from, err := d.send(context.Background(), c)
		if err != nil {
			return answer{Error: &failure{Kind: "none", Message: err.Error()}}
		}
		a, _ := d.wait(context.Background(), from)
		return a
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		id := c.ID
		if before != nil {
			before(&c)
		}
		mu.Lock()
		c.Call = numbers[c.Call]
		number, from, err := d.send(context.Background(), c)
		numbers[id] = number
		mu.Unlock()
		if err != nil {
			return err
		}
		work.Go(func() {
			a, _ := d.wait(context.Background(), from)
			if after != nil {
				after(c, &a, ask)
			}
			a.ID = id
			mu.Lock()
			defer mu.Unlock()
			_ = json.NewEncoder(to).Encode(a)
		})
	}
	work.Wait()
	return d.close(context.Background())
}

// TestDrivers: a driver that does not keep to the protocol is named, and nothing waits for it.
func TestDrivers(t *testing.T) {
	lines := func(do func(c call, say func(string))) *driver {
		return inside(func(in io.Reader, out io.Writer) error {
			for s := bufio.NewScanner(in); s.Scan(); {
				var c call
				if err := json.Unmarshal(s.Bytes(), &c); err != nil {
					return err
				}
				do(c, func(text string) { _, _ = io.WriteString(out, text+"\n") })
			}
			return nil
		})
	}
	for _, tc := range []struct {
		name, want string
		driver     func() *driver
	}{
		{"no JSON", "the driver printed", func() *driver {
			return lines(func(_ call, say func(string)) { say("hello") })
		}},
		{"an answer to no call", "which is none or was answered", func() *driver {
			return lines(func(_ call, say func(string)) { say(`{"id":99}`) })
		}},
		{"two answers", "which is none or was answered", func() *driver {
			return lines(func(c call, say func(string)) {
				say(`{"id":` + strconv.Itoa(c.ID) + `}`)
				say(`{"id":` + strconv.Itoa(c.ID) + `}`)
			})
		}},
		{"it ends", "output has ended", func() *driver { return inside(func(io.Reader, io.Writer) error { return nil }) }},
		{"a status", "broken", func() *driver {
			return inside(func(in io.Reader, out io.Writer) error {
				_ = serveGo(in, out)
				return errors.New("broken")
			})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			two := regexp.MustCompile("^(one ID from one node|a ULID)$")
			failed, err := check(t.Context(), tc.driver(), "go", two, &out)
			if text := out.String() + errorText(err); failed == 0 && err == nil || !strings.Contains(text, tc.want) {
				t.Errorf("%d rows failed, %s", failed, text)
			}
		})
	}
	d := inside(func(in io.Reader, out io.Writer) error { // something keeps it alive
		_, _ = io.Copy(io.Discard, in)
		time.Sleep(100 * time.Millisecond)
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.close(ctx); err == nil || !strings.Contains(err.Error(), "keeps it alive") {
		t.Errorf("a driver that goes on: %v", err)
	}
	<-d.ended
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestExpect: what a caller saw is compared in every part.
func TestExpect(t *testing.T) {
	no := func(kind, reason string) answer {
		return answer{Error: &failure{Kind: kind, Reason: reason, Message: "because"}}
	}
	for _, tc := range []struct {
		c    call
		a    answer
		want string
		ok   bool
	}{
		{call{}, answer{IDs: []string{"32"}}, "ids 1", true},
		{call{}, answer{IDs: []string{"32", "64"}}, "ids 1", false},
		{call{}, answer{}, "ids 1", false},
		{call{}, answer{IDs: []string{"64", "32"}}, "ids 2", false},
		{call{}, answer{IDs: []string{"32", "32"}}, "ids 2", false},
		{call{After: "32"}, answer{IDs: []string{"32"}}, "ids 1", false},
		{call{After: "32"}, answer{IDs: []string{"33"}}, "ids 1", true},
		{call{Op: "concurrent"}, answer{IDs: []string{"100", "32", "64"}}, "ids 3", true},
		{call{Op: "concurrent"}, answer{IDs: []string{"64", "32", "64"}}, "ids 3", false},
		{call{}, answer{IDs: []string{"0000000000010"}}, "ids 1", false},
		{call{Form: "flake"}, answer{IDs: []string{"0000000000010"}}, "ids 1", true},
		{call{Form: "flake"}, answer{IDs: []string{"32"}}, "ids 1", false},
		{call{}, answer{IDs: []string{"x"}}, "ids 1", false},
		{call{}, no("refused", "CLOCK_SKEW"), "refused CLOCK_SKEW", true},
		{call{}, no("refused", "CLOCK_SKEW"), "refused", false},
		{call{}, no("refused", "DRAINING"), "refused CLOCK_SKEW", false},
		{call{}, no("timeout", ""), "unavailable|timeout", true},
		{call{}, no("closed", ""), "unavailable|timeout", false},
		{call{}, answer{Error: &failure{Kind: "timeout"}}, "timeout", false},
		{call{}, no("timeout", ""), "ids 1", false},
		{call{}, answer{IDs: []string{"32"}}, "timeout", false},
	} {
		s := &stage{}
		if s.expect(tc.c, tc.a, tc.want); (len(s.problems) == 0) != tc.ok {
			t.Errorf("%v, %v, want %s: %q", tc.c, tc.a, tc.want, s.problems)
		}
	}
	for took, ok := range map[time.Duration]bool{0: false, time.Second: true, 3 * time.Second: false} {
		s := &stage{s: situation{after: time.Second, within: 2 * time.Second}}
		if s.count(took); (len(s.problems) == 0) != ok {
			t.Errorf("a call of %v: %q", took, s.problems)
		}
	}
	for _, tc := range []struct {
		most, least, asked int
		took               time.Duration
		ok                 bool
	}{
		{1, 1, 1, 0, true}, {1, 1, 2, 0, false}, {1, 1, 2, time.Second, true}, {1, 1, 3, time.Second, false},
		{0, 2, 1, 0, false}, {0, 0, 100, 0, true}, {-1, 0, 0, 0, true}, {-1, 0, 1, 0, false},
	} {
		n := &scripted{asked: make([]request, tc.asked)}
		row := situation{most: tc.most, least: tc.least, options: options{AttemptTimeoutMs: 1000}}
		s := &stage{nodes: []*scripted{n}, s: row}
		if s.count(tc.took); (len(s.problems) == 0) != tc.ok {
			t.Errorf("%+v: %q", tc, s.problems)
		}
	}
}

// TestTwice: the second answer comes without a request.
func TestTwice(t *testing.T) {
	n, err := newScripted(1, "twice", nil)
	fatal.If(t, err)
	defer n.stop()
	c, err := net.Dial("tcp", n.http)
	fatal.If(t, err)
	defer func() { _ = c.Close() }()
	fatal.If(t, c.SetDeadline(time.Now().Add(soon)))
	if _, err := io.WriteString(c, "POST /v1/ids HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in, bodies := bufio.NewReader(c), make([]string, 2)
	for i := range bodies {
		res, err := http.ReadResponse(in, nil)
		fatal.If(t, err)
		text, err := io.ReadAll(res.Body)
		fatal.If(t, err)
		bodies[i] = string(text)
	}
	if bodies[0] != bodies[1] || !strings.Contains(bodies[0], `"ids":["`) {
		t.Errorf("it answered %q", bodies)
	}
}

// TestScripts: each act of a script does over HTTP what it says.
func TestScripts(t *testing.T) {
	const after = 145_000_000_000_000_000
	distinct := func(ids []int64) int { return len(slices.Compact(slices.Sorted(slices.Values(ids)))) }
	for act, right := range map[string]func(code int, ids []int64, body string, err error) bool{
		"serve": func(_ int, ids []int64, _ string, _ error) bool {
			return distinct(ids) == 3 && slices.IsSorted(ids) && ids[0] > after
		},
		"refuse CLOCK_SKEW 1500": func(code int, _ []int64, body string, _ error) bool {
			return code == 503 && strings.Contains(body, `"CLOCK_SKEW"`) && strings.Contains(body, `"retry_after_ms":1500`)
		},
		"refuse UNAUTHENTICATED": func(code int, _ []int64, body string, _ error) bool {
			return code == 401 && !strings.Contains(body, "retry")
		},
		"drop": func(code int, _ []int64, _ string, err error) bool { return code == 0 && err != nil },
		"cut": func(code int, _ []int64, body string, err error) bool {
			return code == 200 && body != "" && err != nil
		},
		"fewer": func(_ int, ids []int64, _ string, _ error) bool { return len(ids) == 2 },
		"more":  func(_ int, ids []int64, _ string, _ error) bool { return len(ids) == 4 },
		"lower": func(_ int, ids []int64, _ string, _ error) bool {
			return distinct(ids) == 3 && slices.Max(ids) <= after
		},
		"same": func(_ int, ids []int64, _ string, _ error) bool {
			return len(ids) == 3 && distinct(ids) == 1 && ids[0] > after
		},
		"falling": func(_ int, ids []int64, _ string, _ error) bool {
			return ids[0] > ids[1] && ids[1] > ids[2] && ids[2] > after
		},
		"layout": func(code int, ids []int64, body string, _ error) bool {
			return code == 200 && len(ids) == 0 && strings.Count(body, `"0`) == 3
		},
		"numbers": func(_ int, _ []int64, body string, _ error) bool { return strings.Contains(body, `"ids":[145`) },
		"text":    func(code int, _ []int64, body string, _ error) bool { return code == 200 && body == "ready" },
		"html 502": func(code int, _ []int64, body string, _ error) bool {
			return code == 502 && strings.Contains(body, "<html>")
		},
		"unknown": func(code int, _ []int64, body string, _ error) bool {
			return code == 503 && strings.Contains(body, laterReason)
		},
	} {
		t.Run(act, func(t *testing.T) {
			n, err := newScripted(1, act, nil)
			fatal.If(t, err)
			defer n.stop()
			post := func() (code int, ids []int64, body string, err error) {
				url := "http://" + n.http + "/v1/ids?as=int&count=3&after=" + strconv.Itoa(after)
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
				fatal.If(t, err)
				r.Header.Set("Authorization", "Bearer secret")
				r.Close = true
				res, err := http.DefaultClient.Do(r)
				if err != nil {
					return 0, nil, "", err
				}
				defer func() { _ = res.Body.Close() }()
				text, err := io.ReadAll(res.Body)
				var answer struct{ IDs []string }
				_ = json.Unmarshal(text, &answer)
				for _, s := range answer.IDs {
					id, bad := strconv.ParseInt(s, 10, 64)
					if bad == nil {
						ids = append(ids, id)
					}
				}
				return res.StatusCode, ids, string(text), err
			}
			code, ids, body, err := post()
			if !right(code, ids, body, err) {
				t.Errorf("%d %d %q %v", code, ids, body, err)
			}
			want := request{count: 3, form: "int", after: flake.ID(after), token: "secret"}
			if got := n.requests(); len(got) != 1 || got[0] != want {
				t.Errorf("it noted %+v", got)
			}
		})
	}
}
