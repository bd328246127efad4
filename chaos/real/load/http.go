package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
)

// httpAsker takes IDs as text, one a line.
type httpAsker struct {
	load   *Load
	client *http.Client
	url    string
}

func (l *Load) newHTTP(n *Node) *httpAsker {
	return &httpAsker{load: l, url: "http://" + n.HTTP + "/v1/ids",
		client: &http.Client{Transport: &http.Transport{DialContext: l.Dial, MaxIdleConnsPerHost: 1}}}
}

func (a *httpAsker) close() { a.client.CloseIdleConnections() }

func (a *httpAsker) ask(ctx context.Context, count int, after flake.ID) (answer, error) {
	url := a.url + "?count=" + strconv.Itoa(count)
	if after > 0 {
		url += "&after=" + after.String()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", errContract, err)
	}
	req.Header.Set("Accept", "text/plain")
	resp, err := a.client.Do(req)
	if err != nil {
		return unknown(ctx), nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return problem(ctx, resp)
	}
	var b history.Block
	stride := int64(1) << a.load.Format.Layout.SIDBits()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		id, err := flake.Parse(lines.Text())
		if err != nil {
			return unknown(ctx), fmt.Errorf("%w: %q: %w", errContract, lines.Text(), err)
		}
		if b.Count == 0 {
			b.First, b.Stride = id, stride
		} else if want := b.First + flake.ID(b.Count*stride); id != want {
			return unknown(ctx), fmt.Errorf("%w: ID %d is %v, not %v", errContract, b.Count, id, want)
		}
		b.Count++
	}
	if lines.Err() != nil {
		return unknown(ctx), nil
	}
	return a.load.checked(b, count, after)
}

func unknown(ctx context.Context) answer {
	if ctx.Err() != nil {
		return answer{info: true, reason: "timeout"}
	}
	return answer{info: true, reason: "connection"}
}

// problem reads a refusal.
func problem(ctx context.Context, resp *http.Response) (answer, error) {
	var p struct {
		Reason string `json:"reason"`
	}
	err := json.NewDecoder(resp.Body).Decode(&p)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax), err == nil && p.Reason == "":
		return unknown(ctx), fmt.Errorf("%w: status %s without a problem document", errContract, resp.Status)
	case err != nil: // cut off
		return unknown(ctx), nil
	}
	a := answer{reason: p.Reason}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		a.retry = time.Duration(seconds) * time.Second
	}
	return a, nil
}
