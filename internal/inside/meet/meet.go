// Package meet has what members of an etcd do before it runs, and beside it: they ask each other
// what each has, answer, keep files that a crash leaves whole, and make room in their databases. Both
// etcd inside and the pods of the chart use it; package member decides from the answers.
//
// Who asks or answers is unknown until its certificate was verified, and a member may have another
// version: every answer has a bound of size and of time, and is refused unless it is complete.
package meet

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside/member"
)

// Timeout bounds one question to another member.
const Timeout = 2 * time.Second

// maxAnswer bounds an answer, in bytes. The longest are the metrics of a member.
const maxAnswer = 1 << 20

// Server returns a server for h whose callers can hold nothing open for long.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 2 * Timeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Get asks url, and returns an answer of any status.
func Get(ctx context.Context, client *http.Client, url string) (status int, body []byte, header http.Header,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	r, err := client.Do(req)
	if err != nil {
		return 0, nil, nil, explain(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	return r.StatusCode, body, r.Header, err
}

// explain says what to do about a certificate whose time is wrong.
func explain(err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("%w: compare the clocks of both machines", err)
	}
	if u := errors.Unwrap(err); u != nil {
		return u // without the method and the URL
	}
	return err
}

// ParseReport reads what the member of fixed name called name says of itself.
func ParseReport(body []byte, name string) (member.Report, error) {
	var r member.Report
	if err := json.Unmarshal(body, &r); err != nil {
		return member.Report{}, fmt.Errorf("its answer is not that of a member: %w", err)
	}
	switch r.Holds {
	case member.HoldsNothing, member.HoldsIntent, member.HoldsData:
	default:
		return member.Report{}, fmt.Errorf("its answer is not that of a member: it has %q as data", r.Holds)
	}
	if r.Name != name {
		return member.Report{}, fmt.Errorf("%q answers there: the address belongs to another member", r.Name)
	}
	return r, nil
}

// ParseWaiting reads what a waiting member answers.
func ParseWaiting(body []byte) (*member.Waiting, error) {
	var w member.Waiting
	if err := json.Unmarshal(body, &w); err != nil {
		return nil, fmt.Errorf("its answer is not that of a waiting member: %w", err)
	}
	if w.Host == "" || w.Process == "" {
		return nil, errors.New("its answer is not that of a waiting member: it has no host and process")
	}
	return &w, nil
}

// ParseMembers reads the list of members that etcd gives to other members.
func ParseMembers(body []byte) (out []member.Member, err error) {
	var list []struct {
		ID      uint64   `json:"id"`
		Peers   []string `json:"peerURLs"`
		Name    string   `json:"name"`
		Clients []string `json:"clientURLs"`
		Learner bool     `json:"isLearner"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("its answer is not that of an etcd: %w", err)
	}
	for _, m := range list {
		out = append(out, member.Member{ID: m.ID, Name: m.Name, Peers: m.Peers, Clients: m.Clients, Learner: m.Learner})
	}
	return out, nil
}

// HasLog reports whether a data directory of etcd has a log. Without one there is no data, whatever
// else there is: etcd makes its directories first, and begins anew in them.
func HasLog(data string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(data, "member", "wal"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".wal") {
			return true, nil
		}
	}
	return false, err
}

// WriteJSON is durable.Replace with a value as JSON.
func WriteJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(path, 0o600, durable.From(bytes.NewReader(append(text, '\n'))))
}
