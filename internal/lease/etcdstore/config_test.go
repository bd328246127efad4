package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/flakelease/allocator/internal/lease/etcdstore/etcdlog"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, name := range []string{"a", "0", "orders", "eu-1.orders_v2", long} {
		if s, err := New(nil, name, "a"); err != nil || string(s.Keys) != "/"+name+"/a/" {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
	}
	for _, name := range []string{"", "-a", ".a", "_", "A", "a/b", "a b", "ä", "a\n", "a\x00", long + "a", ".."} {
		if _, err := New(nil, name, "ok"); !errors.Is(err, ErrName) {
			t.Errorf("root %q: got %v, want ErrName", name, err)
		}
		if _, err := New(nil, "ok", name); !errors.Is(err, ErrName) {
			t.Errorf("space %q: got %v, want ErrName", name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	ok := Config{Endpoints: []string{"http://127.0.0.1:2379"}}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for field, spoil := range map[string]func(*Config){
		"Endpoints":   func(c *Config) { c.Endpoints = nil },
		"Password":    func(c *Config) { c.Username = "u" },
		"Username":    func(c *Config) { c.Password = "p" },
		"DialTimeout": func(c *Config) { c.DialTimeout = -1 },
	} {
		c := ok
		spoil(&c)
		if _, err := Dial(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v, want ErrConfig that names it", field, err)
		}
	}
}

func TestClientLogsThroughSlog(t *testing.T) {
	var out bytes.Buffer
	h := slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})
	log := zap.New(etcdlog.Log{Handler: h, Level: quiet}).Named("etcd-client").With(zap.String("target", "t"))
	log.Warn("retrying", zap.Int("attempt", 2), zap.Error(errors.New("no route")))
	log.Error("token refused", zap.Duration("after", time.Second))
	want := `level=DEBUG msg=retrying target=t logger=etcd-client attempt=2 error="no route"
level=DEBUG msg="token refused" target=t logger=etcd-client after=1s
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	out.Reset()
	to := zap.New(etcdlog.Log{Handler: slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}), Level: quiet})
	to.Warn("retrying")
	to.Error("getToken failed")
	if out.Len() != 0 {
		t.Errorf("a debug line got through: %s", out.String())
	}
}

// TestDialSaysWhy: a client that has to authenticate says why it reaches no etcd, and not only that time ran out.
func TestDialSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := Dial(Config{Endpoints: []string{"http://127.0.0.1:1"}, Username: "u", Password: "p", DialTimeout: 2 * time.Second})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}
