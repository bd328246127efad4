package etcdstore

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/flake"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, name := range []string{"a", "0", "orders", "eu-1.orders_v2", long} {
		if _, err := New(nil, name, name); err != nil {
			t.Errorf("%q: %v", name, err)
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

// Keys are a format: a change strands every record in every etcd.
func TestKeys(t *testing.T) {
	k, err := newKeys("allocator", "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ got, want string }{
		{k.config(), "/allocator/default/config"},
		{k.era(), "/allocator/default/era"},
		{k.node("i-1"), "/allocator/default/node/i-1"},
		{k.holder(7), "/allocator/default/holder/7"},
		{k.window(1023), "/allocator/default/window/1023"},
		{k.ledger(0, 12), "/allocator/default/ledger/0/00000000000000000012"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
	first, end := k.watched()
	for key, want := range map[string]bool{
		k.config(): true, k.era(): true, k.holder(0): true, k.holder(4194303): true,
		k.node("x"): true, k.window(0): false, k.ledger(0, 1): true,
		strings.Replace(k.holder(1), "default", "other", 1): false,
	} {
		if got := first <= key && key < end; got != want {
			t.Errorf("%s watched: got %v, want %v", key, got, want)
		}
	}
	if n := clientv3.GetPrefixRangeEnd(k.ledgerOf(1)); k.ledger(10, 1) < n && k.ledger(10, 1) >= k.ledgerOf(1) {
		t.Error("the ledger of sid 1 takes in that of sid 10")
	}
	for _, s := range []string{"", "01", "+1", "-1", "1 ", "4194304", "0x1", "1_0"} {
		if sid, ok := parseSID(s); ok {
			t.Errorf("sid %q was read as %d", s, sid)
		}
	}
	for _, sid := range []flake.SID{0, 9, 31, 1023, 4194303} {
		if got, ok := parseSID(sidName(sid)); !ok || got != sid {
			t.Errorf("sid %d came back as %d, %v", sid, got, ok)
		}
	}
}

func TestValidate(t *testing.T) {
	ok := Config{Endpoints: []string{"http://127.0.0.1:2379"}, KeepAliveTime: 5 * time.Second}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for field, spoil := range map[string]func(*Config){
		"Endpoints":     func(c *Config) { c.Endpoints = nil },
		"Password":      func(c *Config) { c.Username = "u" },
		"Username":      func(c *Config) { c.Password = "p" },
		"DialTimeout":   func(c *Config) { c.DialTimeout = -1 },
		"KeepAliveTime": func(c *Config) { c.KeepAliveTime = 4999 * time.Millisecond },
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
	log := zap.New(logCore{h}).Named("etcd-client").With(zap.String("target", "t"))
	log.Warn("retrying", zap.Int("attempt", 2), zap.Error(errors.New("no route")))
	log.Error("token refused", zap.Duration("after", time.Second))
	want := `level=DEBUG msg=retrying target=t logger=etcd-client attempt=2 error="no route"
level=WARN msg="token refused" target=t logger=etcd-client after=1s
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	out.Reset()
	quiet := zap.New(logCore{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})})
	quiet.Warn("retrying")
	if out.Len() != 0 {
		t.Errorf("a debug line got through: %s", out.String())
	}
}

func TestPingAndVersion(t *testing.T) {
	s := open(t, shared)
	ctx := timeout(t, 20*time.Second)
	cluster, revision, err := s.Ping(ctx)
	if err != nil || cluster == 0 || revision == 0 {
		t.Errorf("ping: got %x, %d, %v", cluster, revision, err)
	}
	if v, err := s.Version(ctx); err != nil || !strings.HasPrefix(v, "3.") {
		t.Errorf("version: got %q, %v, want 3.x", v, err)
	}
}
