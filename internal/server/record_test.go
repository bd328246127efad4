package server_test

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"sync"
	"testing"
)

// exchanges names a file. chaos/interop runs these tests with it and validates what
// they received against openapi.yaml, with a library that this module does without.
var exchanges = flag.String("exchanges", "", "append every HTTP exchange to this file, as lines of JSON")

// exchange is one line of the file.
type exchange struct {
	Test   string      `json:"test"`
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

var recording sync.Mutex // serializes writes to the file

func record(t testing.TB, req *http.Request, res *http.Response, body []byte) {
	t.Helper()
	if *exchanges == "" {
		return
	}
	line, err := json.Marshal(exchange{t.Name(), req.Method, req.URL.String(), res.StatusCode, res.Header, body})
	if err != nil {
		t.Fatal(err)
	}
	recording.Lock()
	defer recording.Unlock()
	f, err := os.OpenFile(*exchanges, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
