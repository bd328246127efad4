package servertest

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// exchanges names a file. chaos/real/interop runs tests with it and compares the answers that
// they received with openapi.yaml, with a library that this module does not require.
var exchanges = flag.String("exchanges", "", "append every HTTP exchange to this file, as lines of JSON")

// Exchange is one line of the file.
type Exchange struct {
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
	line, err := json.Marshal(Exchange{t.Name(), req.Method, req.URL.String(), res.StatusCode, res.Header, body})
	fatal.If(t, err)
	recording.Lock()
	defer recording.Unlock()
	f, err := os.OpenFile(*exchanges, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	fatal.If(t, err)
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, f.Close())
}
