package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

type still struct{}

func (still) Clocks() clock.Snapshot   { return clock.Snapshot{Raw: 1} }
func (still) Status() agreement.Status { return agreement.Status{SID: -1} }

func aConfig() Config {
	return Config{
		Node: "n", Instance: anInstance.String(), Label: "allocator/test", Pool: "p", Bind: "127.0.0.1:0",
		Local: still{}, OnExchange: func(agreement.Exchange) {},
	}
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*Config)
		want string // empty: valid
	}{
		"as is":                     {func(c *Config) {}, ""},
		"localhost":                 {func(c *Config) { c.Bind = "localhost:7946" }, ""},
		"IPv6 loopback":             {func(c *Config) { c.Bind = "[::1]:7946" }, ""},
		"all of 127":                {func(c *Config) { c.Bind = "127.9.9.9:7946" }, ""},
		"key":                       {func(c *Config) { c.Bind, c.Keys = "0.0.0.0:7946", new(Keys) }, ""},
		"insecure":                  {func(c *Config) { c.Bind, c.Insecure = ":7946", true }, ""},
		"no key":                    {func(c *Config) { c.Bind = "10.0.0.1:7946" }, ErrNoKey.Error()},
		"no key, all":               {func(c *Config) { c.Bind = ":7946" }, ErrNoKey.Error()},
		"no key, all IPv6":          {func(c *Config) { c.Bind, c.Advertise = "[::]:7946", "[fd00::1]:7946" }, ErrNoKey.Error()},
		"no key, mapped":            {func(c *Config) { c.Bind = "[::ffff:10.0.0.1]:7946" }, ErrNoKey.Error()},
		"advertised does not count": {func(c *Config) { c.Bind, c.Advertise = "0.0.0.0:7946", "127.0.0.1:7946" }, ErrNoKey.Error()},
		"all IPv6":                  {func(c *Config) { c.Bind, c.Insecure = "[::]:7946", true }, "Advertise"},
		"a host name":               {func(c *Config) { c.Bind = "example.org:7946" }, "Bind"},
		"no port":                   {func(c *Config) { c.Bind = "127.0.0.1" }, "Bind"},
		"no bind":                   {func(c *Config) { c.Bind = "" }, "Bind"},
		"advertised name":           {func(c *Config) { c.Advertise = "example.org:7946" }, "Advertise"},
		"advertised all":            {func(c *Config) { c.Advertise = "0.0.0.0:7946" }, "Advertise"},
		"no node":                   {func(c *Config) { c.Node = "" }, "Node"},
		"blank in node":             {func(c *Config) { c.Node = "a b" }, "Node"},
		"no label":                  {func(c *Config) { c.Label = "" }, "Label"},
		"long label":                {func(c *Config) { c.Label = strings.Repeat("l", 256) }, "Label"},
		"no pool":                   {func(c *Config) { c.Pool = "" }, "Pool"},
		"no instance":               {func(c *Config) { c.Instance = "" }, "Instance"},
		"instance in capitals":      {func(c *Config) { c.Instance = strings.ToUpper(c.Instance) }, "Instance"},
		"no clocks":                 {func(c *Config) { c.Local = nil }, "Local"},
		"nobody listens":            {func(c *Config) { c.OnExchange = nil }, "OnExchange"},
		"negative":                  {func(c *Config) { c.Every = -1 }, "Every"},
	} {
		c := aConfig()
		tc.edit(&c)
		err := c.Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
		if errors.Is(err, ErrNoKey) != (tc.want == ErrNoKey.Error()) {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err2 := New(c); tc.want != "" && fmt.Sprint(err2) != fmt.Sprint(err) {
			t.Errorf("%s: New says %v", name, err2)
		}
	}
}

func TestListenNeedsAKey(t *testing.T) {
	c := aConfig()
	c.Bind = "0.0.0.0:0"
	if tr, _, err := Listen(c); !errors.Is(err, ErrNoKey) || tr != nil {
		t.Errorf("got %v, %v", tr, err)
	}
}

// Only nodes of our pool and version, whose name goes with what they announce.
func TestAdmit(t *testing.T) {
	cfg := aConfig()
	cfg.Instance = "00000000-0000-4000-8000-000000000002"
	c, err := New(cfg)
	fatal.If(t, err)
	ours := announcement{Pool: poolHash("p"), Instance: anInstance}
	other := ours
	other.Pool = poolHash("q")
	someone := ours
	someone.Instance = uuid.MustParse("00000000-0000-4000-8000-000000000001")
	name := memberName("web.3", anInstance)
	own, listed := ours, ours
	own.Instance = c.instance
	listed.Instance = uuid.MustParse("00000000-0000-4000-8000-000000000003")
	c.SetPeers([]agreement.Peer{{Node: "web.4", Instance: listed.Instance.String(), Gossip: "10.0.0.1:7946"}, {
		Node: "web.5", Instance: "00000000-0000-4000-8000-000000000004", Gossip: "10.0.0.2:7946",
	}})
	elsewhere := ours
	elsewhere.Instance = uuid.MustParse("00000000-0000-4000-8000-000000000004")
	for what, tc := range map[string]struct {
		name string
		meta []byte
		want error
	}{
		"ours":               {name, ours.encode(), nil},
		"another pool":       {name, other.encode(), ErrOtherPool},
		"another version":    {name, append([]byte{2}, ours.encode()[1:]...), ErrOtherVersion},
		"another's name":     {name, someone.encode(), errAnnouncement},
		"no node name":       {"-6f1c2e0a", ours.encode(), errAnnouncement},
		"no suffix":          {"web.3", ours.encode(), errAnnouncement},
		"control characters": {"a\nb-6f1c2e0a", ours.encode(), errAnnouncement},
		"nothing announced":  {name, nil, errAnnouncement},
		"cut":                {name, ours.encode()[:30], errAnnouncement},
		"a tail":             {name, append(ours.encode(), 0), errAnnouncement},
		"registered":         {memberName("web.4", listed.Instance), listed.encode(), nil},
		"under another name": {memberName("web.3", listed.Instance), listed.encode(), errImpostor},
		"elsewhere":          {memberName("web.5", elsewhere.Instance), elsewhere.encode(), errImpostor},
		"ourselves":          {memberName(cfg.Node, c.instance), own.encode(), nil},
		"our instance":       {memberName("web.3", c.instance), own.encode(), errImpostor},
	} {
		id, err := c.admit(&memberlist.Node{Name: tc.name, Meta: tc.meta, Addr: []byte{10, 0, 0, 1}, Port: 7946})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", what, err, tc.want)
		}
		if a, _ := decodeAnnouncement(tc.meta); err == nil && id != a.Instance {
			t.Errorf("%s: got %v", what, id)
		}
	}
}

func TestLineLog(t *testing.T) {
	var out bytes.Buffer
	var now int64
	l := newLineLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), func() int64 { return now })
	to := l.logger()
	for _, line := range []string{
		"[DEBUG] memberlist: nobody wants this", "[WARN] memberlist: Got ping for unexpected node 'web.1' from=10.0.0.1:7946",
		"[WARN] memberlist: a\nlevel=ERROR forged", "[ERR] memberlist: b", "[ERROR] memberlist: c", "[INFO] memberlist: d", "e",
		"Err: f", "[WARN] " + strings.Repeat("x", 2*maxLine),
	} {
		to.Print(line)
	}
	want := `level=WARN msg="gossip library" line="a\nlevel=ERROR forged"
level=ERROR msg="gossip library" line=b
level=ERROR msg="gossip library" line=c
level=INFO msg="gossip library" line=d
level=INFO msg="gossip library" line=e
level=ERROR msg="gossip library" line=f
level=WARN msg="gossip library" line=` + strings.Repeat("x", maxLine) + "\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	for range 1003 { // seven tokens are spent
		to.Print("[INFO] memberlist: flood")
	}
	if got := strings.Count(out.String(), "\n"); got != 3 || l.suppressed.Load() != 1000 {
		t.Errorf("%d lines written, %d dropped", got, l.suppressed.Load())
	}
	out.Reset()
	now = 1_500_000_000
	to.Print("[WARN] memberlist: later")
	to.Print("[WARN] memberlist: too soon")
	now = 2_000_000_000
	to.Print("[WARN] memberlist: again")
	want = `level=WARN msg="gossip library" line=later suppressed=1000
level=WARN msg="gossip library" line=again suppressed=1
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	for range 130 { // the library's line of each probe where a firewall passes no UDP
		now += 1_000_000_000
		to.Print("[WARN] memberlist: was able to connect to n-2 over TCP but UDP probes failed")
	}
	if got := strings.Count(out.String(), "UDP"); got != 3 || !strings.Contains(out.String(), " suppressed=59\n") {
		t.Errorf("%d lines in 130 s:\n%s", got, out.String())
	}
}
