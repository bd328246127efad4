package client

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// bearer sends a token with every request.
type bearer struct {
	token     func(context.Context) (string, error)
	plaintext bool
}

// GetRequestMetadata returns the header of a request.
func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	t, err := b.token(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + t}, nil
}

// RequireTransportSecurity reports whether the token needs TLS.
func (b bearer) RequireTransportSecurity() bool { return !b.plaintext }

// tokenFile is a token in a file that others rotate.
type tokenFile struct {
	path string

	mu      sync.Mutex // guards the rest
	changed time.Time  // the file's time of change when it was read
	size    int64
	token   string
}

// get returns the token, and reloads it if the file has changed. If that fails, as
// while the file is being replaced, it returns the last token.
func (f *tokenFile) get(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.token != "" && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return f.token, nil
	}
	var content []byte
	if err == nil {
		content, err = os.ReadFile(f.path)
	}
	token := strings.TrimSpace(string(content))
	switch {
	case err == nil && token != "":
		f.token, f.changed, f.size = token, info.ModTime(), info.Size()
	case f.token != "":
	case err != nil:
		return "", fmt.Errorf("client: token file: %w", err)
	default:
		return "", fmt.Errorf("client: token file %s is empty: write a token into it", f.path)
	}
	return f.token, nil
}
