package debug

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/status/feed"
)

func TestClean(t *testing.T) {
	for given, want := range map[string]string{
		"GET http://user:p@ss-1@host/a?b":                                         "GET http://user:REMOVED@host/a?b",
		"https://10.0.0.1:2379,https://10.0.0.2:2379":                             "https://10.0.0.1:2379,https://10.0.0.2:2379",
		"authorization: Bearer abc.def-12345":                                     "authorization: Bearer REMOVED",
		"tried allocator_ABCDEFGHIJKLMNOPQRSTUVWXYZ today":                        "tried REMOVED today",
		`msg="the worker w1.7.12.Secret0123456789 is extended"`:                   `msg="the worker w1.7.12.REMOVED is extended"`,
		"host=db password=hunter2 user=ids":                                       "host=db password=REMOVED user=ids",
		`error="dial: password=\"hunter 2\" user=ids"`:                            `error="dial: password=REMOVED user=ids"`,
		`{"password":"hunter2","user":"ids"}`:                                     `{"password":REMOVED,"user":"ids"}`,
		"etcd:\n  password: hunter2\n  password-file: /etc/p":                     "etcd:\n  password: REMOVED\n  password-file: /etc/p",
		"sslpassword='hunter 2' host=db":                                          "sslpassword=REMOVED host=db",
		"no token: give --token-file":                                             "no token: give --token-file",
		"auth.token-file: open /etc/tokens: not found":                            "auth.token-file: open /etc/tokens: not found",
		"a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb": "a\nREMOVED\nb",
		"the token is mine":                                                       "the token is REMOVED",
	} {
		if got := string(clean([]byte(given), "mine")); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}

// Only a node that is silent "does not answer".
func TestProblem(t *testing.T) {
	for _, tc := range []struct {
		err  error
		some bool
		want string
	}{
		{nil, true, ""},
		{status.Error(codes.Unavailable, "connection refused"), false, "does not answer: connection refused"},
		{status.Error(codes.DeadlineExceeded, "it took 10s"), true, "did not send all: it took 10s"},
		{status.Error(codes.Unimplemented, "an agent issues IDs: ask n1:9000"), false, "an agent issues IDs: ask n1:9000"},
		{status.Error(codes.PermissionDenied, "it needs scope read"), false, "it needs scope read"},
	} {
		if got := new(gathering).problem(tc.err, tc.some); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.err, got, tc.want)
		}
	}
}

// TestIndex: the page merges what all nodes tell of the past by time, without secrets, escaped and bounded.
func TestIndex(t *testing.T) {
	event := func(ms int64, node, kind, message string) string {
		e := feed.Event{At: ms, Node: node, Kind: feed.Kind(kind), Message: message, Attributes: map[string]string{"b": "2", "a": "1"}}
		return string(feed.JSON(e)) + "\n"
	}
	g := gathering{App: new(cli.App), Nodes: []node{{Label: "n1", Dir: "nodes/n1"}, {Label: "n2", Dir: "nodes/n2"}}}
	g.Files = map[string][]byte{
		"doctor.txt":       []byte("doctor"),
		"config-print.txt": []byte("a"),
		"nodes/n1/events.jsonl": []byte(event(1000, "n1", "first", "it began <b>\x1b") +
			event(4000, "n1", "fourth", `password=a"`) + "no event\n"),
		"nodes/n1/status.json": []byte(`{"self":{"refused":{"WINDOW_EXHAUSTED":7,"NO_SID":0,"DRAINING":1}}}`),
		"nodes/n2/log.txt": []byte("time=1970-01-01T01:00:02.000+01:00 level=ERROR msg=second token=CANARY\n" +
			"time=1970-01-01T00:00:02.500Z level=INFO msg=usual\n" +
			"time=1970-01-01T00:00:03.000Z level=WARN msg=\"an event\" event=third sid=1\n" +
			"time=never level=WARN msg=x\nlevel=WARN\n"),
		"nodes/n2/events.jsonl": []byte(event(3000, "n3", "third", strings.Repeat("x", 2*maxLine))),
	}
	var b bytes.Buffer
	if err := g.write(&b); err != nil {
		t.Fatal(err)
	}
	page := string(g.Files["index.html"])
	at := 0
	for _, want := range []string{
		"1970-01-01 00:00:01.000 n1 | n1: first: it began &lt;b&gt;\ufffd a=&#34;1&#34; b=&#34;2&#34;\n",
		"1970-01-01 00:00:02.000 n2 | msg=second token=REMOVED\n",
		"1970-01-01 00:00:03.000 n2 | n3: third: xxx",
		"1970-01-01 00:00:04.000 n1 | {",
		"password=REMOVED",
		"DRAINING 1, WINDOW_EXHAUSTED 7<",
		"config-print.txt</a> 1 bytes: settings of this machine",
	} {
		i := strings.Index(page[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing, or too early, in\n%s", want, page)
		}
		at += i + len(want)
	}
	for _, not := range []string{"CANARY", "usual", "an event", strings.Repeat("x", maxLine), "NO_SID"} {
		if strings.Contains(page, not) {
			t.Errorf("the page has %q", not)
		}
	}
	g.Files["nodes/n1/events.jsonl"] = []byte(strings.Repeat(event(5000, "n1", "again", ""), 2*maxHappened))
	if all := g.Happened(); len(all) != maxHappened {
		t.Errorf("%d lines, want %d", len(all), maxHappened)
	}
	if all := g.Happened(); all[0].Text != all[maxHappened-1].Text {
		t.Errorf("the first is %v", all[0])
	}
}
