package maelstrom

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func number(n int64) *int64 { return &n }

func TestParseMessage(t *testing.T) {
	for _, tc := range []struct {
		line string
		want Message // without Body
		bad  bool
	}{
		{`{"id":7,"src":"c1","dest":"n1","body":{"type":"generate","msg_id":2}}`, Message{Src: "c1", Dest: "n1", Type: "generate", MsgID: number(2)}, false},
		{`{"src":"lin-kv","dest":"n1","body":{"type":"read_ok","in_reply_to":3,"value":"x"}}`, Message{Src: "lin-kv", Dest: "n1", Type: "read_ok", InReplyTo: number(3)}, false},
		{`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":null}}`, Message{Src: "c1", Dest: "n1", Type: "generate"}, false},
		// What can be told apart of a message that is none.
		{`{"src":"c1","dest":"n1","body":{"msg_id":2}}`, Message{Src: "c1", Dest: "n1", MsgID: number(2)}, true},
		{`{"src":"c1","dest":"n1","body":{"msg_id":2,"type":5}}`, Message{Src: "c1", Dest: "n1", MsgID: number(2)}, true},
		{`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":"2"}}`, Message{Src: "c1", Dest: "n1", Type: "generate"}, true},
		{`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":1.5}}`, Message{Src: "c1", Dest: "n1", Type: "generate"}, true},
		{`{"src":"c1","body":{"type":"generate","msg_id":2}}`, Message{Src: "c1", Type: "generate", MsgID: number(2)}, true},
		{`{"dest":"n1","body":{"type":"generate","msg_id":2}}`, Message{Dest: "n1", Type: "generate", MsgID: number(2)}, true},
		{`{"SRC":"c1","dest":"n1","body":{"type":"generate"}}`, Message{Dest: "n1", Type: "generate"}, true},
		{`{"src":"c1","dest":"n1","body":[]}`, Message{Src: "c1", Dest: "n1"}, true},
		{`{"src":"c1","dest":"n1"}`, Message{Src: "c1", Dest: "n1"}, true},
		{`null`, Message{}, true},
		{`17`, Message{}, true},
		{``, Message{}, true},
		{`{"src":`, Message{}, true},
	} {
		got, err := ParseMessage([]byte(tc.line))
		if tc.bad != errors.Is(err, ErrMessage) || !tc.bad && err != nil {
			t.Errorf("%s: %v, want an error: %v", tc.line, err, tc.bad)
		}
		got.Body = nil
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(tc.want)
		if !bytes.Equal(g, w) {
			t.Errorf("%s:\n got %s\nwant %s", tc.line, g, w)
		}
	}
}

func TestDefinite(t *testing.T) {
	// Source: the table in Maelstrom's doc/protocol.md.
	definite := map[Code]bool{1: true, 10: true, 11: true, 12: true, 14: true, 20: true, 21: true, 22: true, 30: true}
	for code := Code(-1); code < 1100; code++ {
		if code.Definite() != definite[code] {
			t.Errorf("code %d is definite: %v", code, code.Definite())
		}
	}
	for body, want := range map[string]Code{
		`{"type":"error","code":22}`:  PreconditionFailed,
		`{"type":"error","text":"x"}`: Crash,
		`{"type":"error","code":"x"}`: Crash,
		`{"type":"error","code":0}`:   Timeout,
	} {
		if got := code(parseError(Message{Type: "error", Body: []byte(body)})); got != want {
			t.Errorf("%s: code %d, want %d", body, got, want)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":2}}`))
	f.Add([]byte(`{"src":"lin-kv","dest":"n1","body":{"type":"error","in_reply_to":3,"code":20}}`))
	f.Add([]byte(`{"src":"c1","dest":"n1","body":{"type":"init","msg_id":1,"node_id":"n1","node_ids":["n1"]}}`))
	f.Add([]byte(`{"src":1,"body":{"msg_id":1e99}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := ParseMessage(line)
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("error is %v", err)
			}
			return
		}
		if m.Src == "" && !bytes.Contains(line, []byte(`""`)) || m.Body == nil {
			t.Fatalf("%q was read as %+v", line, m)
		}
		_ = parseError(m)
		// What was read can be sent, and is read the same.
		out, err := encode(m.Src, m.Dest, m.Body)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseMessage(out)
		if err != nil || again.Src != m.Src || again.Dest != m.Dest || again.Type != m.Type {
			t.Fatalf("%q was read as %+v, sent as %q and read as %+v, %v", line, m, out, again, err)
		}
	})
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", maxLine+1)
	fits := strings.Repeat("y", maxLine-1)
	in := "a\n\n  \r\nb\r\n" + long + "\nc\n" + fits + "\n" + long + long + "\nlast"
	var got []string
	skipped := 0
	err := readLines(strings.NewReader(in), func(line []byte) error {
		got = append(got, string(line))
		return nil
	}, func() { skipped++ })
	if err != nil || skipped != 2 {
		t.Errorf("got %v, and %d lines skipped, want 2", err, skipped)
	}
	if want := []string{"a", "b", "c", fits, "last"}; strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %d lines: %.100q", len(got), got)
	}
	stop := errors.New("stop")
	if err := readLines(strings.NewReader("a\nb\n"), func([]byte) error { return stop }, nil); !errors.Is(err, stop) {
		t.Errorf("an error of f: got %v", err)
	}
}
