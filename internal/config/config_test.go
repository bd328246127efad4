package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

var update = flag.Bool("update", false, "rewrite the sample of settings")

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "allocator.yaml")
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.String("format", "text", "a flag that is no option")
	AddFlags(fs)
	fatal.If(t, fs.Parse(args))
	return fs
}

func TestPrecedence(t *testing.T) {
	path := write(t, "lease:\n  window: 40s\n  ttl: 20s\nwatermark:\n  interval: 6s\nspace: from-file\netcd:\n  endpoints: [a:1, b:2]\n  inside: /var/lib/allocator\n  tls:\n    ca: etcd.pem\n"+
		"auth:\n  token-file: tokens\ntls:\n  cert: c.pem\n  key: c.key\n  client-ca: ca.pem\ngossip:\n  key-file: key\nepoch: 2025-01-01T00:00:00Z\n")
	c, settings, err := Load(Sources{
		File: path,
		Env: []string{"ALLOCATOR_LEASE_WINDOW=50s", "ALLOCATOR_WATERMARK_INTERVAL=7s", "HOME=/", "ALLOCATOR_SPACE=",
			"ALLOCATOR_ETCD_INSIDE=", "ALLOCATOR_ETCD_JOIN=", "ALLOCATOR_ETCD_TLS_CA=", "ALLOCATOR_AUTH_TOKEN_FILE=",
			"ALLOCATOR_TLS_CLIENT_CA=", "ALLOCATOR_GOSSIP_KEY_FILE="},
		Flags: flags(t, "--lease.window=60s", "--console.operate"),
	})
	fatal.If(t, err)
	got := map[string]Setting{}
	for _, s := range settings {
		got[s.Key] = s
	}
	for _, want := range []Setting{
		{"lease.window", "1m", "flag --lease.window"},
		{"watermark.interval", "7s", "env ALLOCATOR_WATERMARK_INTERVAL"},
		{"lease.ttl", "20s", "file " + path},
		{"issue.max-lead", "250ms", "default"},
		{"space", "from-file", "file " + path},
		{"etcd.inside", "", "env ALLOCATOR_ETCD_INSIDE"}, // The node is a client.
		{"etcd.join", "", "default"},
		{"etcd.tls.ca", "etcd.pem", "file " + path}, // Nothing that protects goes without a word.
		{"auth.token-file", "tokens", "file " + path},
		{"tls.client-ca", "ca.pem", "file " + path},
		{"gossip.key-file", "key", "file " + path},
		{"etcd.endpoints", "a:1,b:2", "file " + path},
		{"epoch", "2025-01-01T00:00:00Z", "file " + path},
		{"console.operate", "true", "flag --console.operate"},
	} {
		if diff := cmp.Diff(want, got[want.Key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Key, diff)
		}
	}
	if c.Lease.Window != time.Minute || c.Lease.TTL != 20*time.Second || !slices.Equal(c.Etcd.Endpoints, []string{"a:1", "b:2"}) {
		t.Errorf("settings and configuration differ: %+v", c)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// A member that is alone has a socket that no other user can open; one that others know has none.
func TestSocket(t *testing.T) {
	alone := Etcd{Inside: Inside{Dir: "/var/lib/allocator", ClientPort: 2379, PeerPort: 2380}}
	for name, tc := range map[string]struct {
		change  func(*Etcd)
		exposed string
	}{
		"alone":           {func(*Etcd) {}, ""},
		"with an address": {func(e *Etcd) { e.Inside.Address = "127.0.0.1" }, "needs neither etcd.address"},
		"of several":      {func(e *Etcd) { e.Inside.Join = []string{"127.0.0.1"} }, "needs neither etcd.address"},
		"with TLS":        {func(e *Etcd) { e.TLS.CA = "ca.pem" }, ""},
		"a long path":     {func(e *Etcd) { e.Inside.Dir += strings.Repeat("/d", 40) }, "is too long"},
		"no member":       {func(e *Etcd) { e.Inside.Dir = "" }, ""},
	} {
		e := alone
		tc.change(&e)
		if got := e.Exposed(); (got == "") != (tc.exposed == "") || !strings.Contains(got, tc.exposed) {
			t.Errorf("%s: exposed %q, want %q", name, got, tc.exposed)
		}
		want := ""
		if name == "alone" {
			want = "/var/lib/allocator/sockets/clients"
		}
		if got := e.Socket(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := alone.Addresses(); !slices.Equal(got, []string{"unix:///var/lib/allocator/sockets/clients"}) {
		t.Errorf("it is called at %q", got)
	}
}

func TestUnknownKeys(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		env        []string
		want       string // "": no error
	}{
		{name: "misspelt", file: "lease:\n  windw: 1m\n", want: `did you mean "lease.window"?`},
		{name: "section given a value", file: "drain: 5s\n", want: "it is a section: set drain.delay"},
		{name: "empty section", file: "drain:\n"},
		{name: "empty value", file: "space:\n"},
		{name: "empty file", file: "\n"},
		{name: "misspelt variable", env: []string{"ALLOCATOR_LEASE_TTTL=1s"}, want: "did you mean ALLOCATOR_LEASE_TTL?"},
		{name: "another program's", env: []string{"ALLOCATORS_X=1", "LEASE_WINDOW=x"}},
		{name: "client's own", env: []string{"ALLOCATOR_ADDR=x:1", "ALLOCATOR_CONFIG=/x", "ALLOCATOR_TOKEN=x"}},
		{name: "service links", env: []string{
			"ALLOCATOR_PORT=tcp://10.0.0.1:9000", "ALLOCATOR_PORT_9000_TCP=x", "ALLOCATOR_PORT_9000_TCP_ADDR=x",
			"ALLOCATOR_SERVICE_HOST=x", "ALLOCATOR_SERVICE_PORT_GRPC=x", "ALLOCATOR_HEADLESS_SERVICE_HOST=x",
			"ALLOCATOR_HEADLESS_PORT=x", "ALLOCATOR_HEADLESS_PORT_9000_TCP_PROTO=x",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Sources{Env: tt.env}
			if tt.file != "" {
				s.File = write(t, tt.file)
			}
			_, _, err := Load(s)
			if tt.want == "" {
				if err != nil {
					t.Errorf("got %v, want none", err)
				}
				return
			}
			if !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// A variable that a Service injects must never be an option, or a pod would be
// configured by other Services.
func TestNoOptionLooksLikeAServiceLink(t *testing.T) {
	seen := map[string]string{}
	for _, o := range Options() {
		if serviceLinks.MatchString(o.Env()) {
			t.Errorf("%s: %s is ignored", o.Key, o.Env())
		}
		if other := seen[o.Env()]; other != "" {
			t.Errorf("%s and %s share %s", other, o.Key, o.Env())
		}
		seen[o.Env()] = o.Key
		if o.Usage == "" || o.Why == "" {
			t.Errorf("%s has no usage or reason", o.Key)
		}
	}
}

func TestBadValues(t *testing.T) {
	for env, want := range map[string]string{
		"ALLOCATOR_LEASE_WINDOW=30":                 "with a unit",
		"ALLOCATOR_CLUSTER_EXPECT=one":              "not a whole number",
		"ALLOCATOR_CONSOLE_OPERATE=maybe":           "is not a boolean",
		"ALLOCATOR_LAYOUT=huge":                     "none of scalable",
		"ALLOCATOR_SID_RANGE=0..23":                 "write first-last",
		"ALLOCATOR_SID_RANGE=5-3":                   "the last sid is below the first",
		"ALLOCATOR_SID_RANGE=1000-4194304":          "write first-last",
		"ALLOCATOR_EPOCH=yesterday":                 "is not a time",
		"ALLOCATOR_EPOCH=2024-01-01T0:0:0Z":         "is not a time",
		"ALLOCATOR_EPOCH=2024-01-01T00:00:00.0001Z": "fractions of a millisecond",
	} {
		_, _, err := Load(Sources{Env: []string{env}})
		name, _, _ := strings.Cut(env, "=")
		if !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want %q and the variable", env, err, want)
		}
	}
	if _, _, err := Load(Sources{File: "/does/not/exist"}); !errors.Is(err, ErrFile) {
		t.Errorf("missing file: got %v", err)
	}
	if _, _, err := Load(Sources{File: write(t, "a: [")}); !errors.Is(err, ErrFile) {
		t.Errorf("broken YAML: got %v", err)
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for _, tt := range []struct {
		key    string
		change func(*Config)
	}{
		{"node.name", func(c *Config) { c.Node.Name = "Node 1" }},
		{"node.name", func(c *Config) { c.Node.Name = strings.Repeat("a", 64) }},
		{"node.name", func(c *Config) { c.Node.Name = "operator" }},
		{"space", func(c *Config) { c.Space = "" }},
		{"space", func(c *Config) { c.Space = "a/b" }},
		{"root", func(c *Config) { c.Root = "-x" }},
		{"layout", func(c *Config) { c.Layout = flake.Standalone }},
		{"epoch", func(c *Config) { c.Epoch = -1 }},
		{"sid-range", func(c *Config) { c.SIDRange = lease.SIDRange{From: 24, To: 33} }},
		{"sid-range", func(c *Config) { c.SIDRange = lease.SIDRange{From: 3, To: 3} }},
		{"worker.sid-range", func(c *Config) { c.Worker.SIDRange = lease.SIDRange{From: 24, To: 33} }},
		{"worker.sid-range", func(c *Config) { c.Worker.SIDRange = lease.SIDRange{From: 3, To: 3} }},
		{"worker.sid-range", func(c *Config) {
			c.SIDRange, c.Worker.SIDRange = lease.SIDRange{From: 0, To: 24}, lease.SIDRange{From: 8, To: 16}
		}},
		{"worker.window", func(c *Config) { c.Worker.Window = time.Second }},
		{"worker.window", func(c *Config) { c.Worker.Window = 2500 * time.Millisecond }},
		{"worker.per-client", func(c *Config) { c.Worker.PerClient = -1 }},
		{"etcd.endpoints", func(c *Config) { c.Etcd.Endpoints = []string{"localhost"} }},
		{"etcd.endpoints", func(c *Config) { c.Etcd.Endpoints = []string{"ftp://a:1"} }},
		{"etcd.endpoints", func(c *Config) { c.Etcd.Endpoints = []string{"http://u:p@a:1"} }},
		{"etcd.endpoints", func(c *Config) { c.Etcd.Endpoints, c.Etcd.TLS.CA = []string{"http://a:1"}, "ca.pem" }},
		{"etcd.username", func(c *Config) { c.Etcd.Username = "u" }},
		{"etcd.tls.cert", func(c *Config) { c.Etcd.TLS.Cert = "x" }},
		{"lease.window", func(c *Config) { c.Lease.Window = 999 * time.Millisecond }},
		{"lease.window", func(c *Config) { c.Lease.Window = 25 * time.Hour }},
		{"lease.window", func(c *Config) { c.Layout, _ = flake.ParseLayout("39/8/16,unit=1m") }},
		{"etcd.snapshot-command", func(c *Config) { c.Etcd.Inside.SnapshotCommand = "copy" }},
		{"lease.ttl", func(c *Config) { c.Lease.TTL = time.Second }},
		{"lease.ttl", func(c *Config) { c.Lease.TTL = 15500 * time.Millisecond }},
		{"issue.max-lead", func(c *Config) { c.Issue.MaxLead = -1 }},
		{"issue.max-lead", func(c *Config) { c.Issue.MaxLead = 11 * time.Second }},
		{"issue.max-lead", func(c *Config) { c.Issue.MaxLead = 1500 * time.Microsecond }},
		{"issue.max-skew", func(c *Config) { c.Issue.MaxSkew = 0 }},
		{"listen.grpc", func(c *Config) { c.Listen.GRPC = "9000" }},
		{"listen.http", func(c *Config) { c.Listen.HTTP = "localhost:http" }},
		{"listen.resp", func(c *Config) { c.Listen.RESP = "6380" }},
		{"listen.resp", func(c *Config) { c.Listen.RESP = "unix:relative" }},
		{"listen.resp", func(c *Config) { c.Listen.RESP = "unix:/" + strings.Repeat("x", 107) }},
		{"listen.resp", func(c *Config) { c.Listen.RESP = "unix:/tmp/dir/" }},
		{"listen.resp", func(c *Config) { c.Listen.GRPC, c.Listen.RESP = "unix:/run/a/g", "unix:/run/a/../a/g" }},
		{"listen.socket-mode", func(c *Config) { c.Listen.RESP, c.Listen.Socket.Mode = "unix:/run/r", 0o060 }},
		{"listen.admin", func(c *Config) { c.Listen.Admin = "unix:/run/a" }},
		{"listen.admin", func(c *Config) { c.Listen.Admin = ":70000" }},
		{"advertise.grpc", func(c *Config) { c.Advertise.GRPC = ":9000" }},
		{"advertise.console", func(c *Config) { c.Advertise.Console = "node-1" }},
		{"advertise.console", func(c *Config) { c.Advertise.Console = "javascript://node-1:7947" }},
		{"advertise.console", func(c *Config) { c.Advertise.Console = "https://node-1:7947/console/" }},
		{"advertise.console", func(c *Config) { c.Advertise.Console = "https://ann@node-1:7947" }},
		{"advertise.console", func(c *Config) { c.Advertise.Console = "https://node-1:0" }},
		{"log.level", func(c *Config) { c.Log.Level = "loud" }},
		{"log.format", func(c *Config) { c.Log.Format = "xml" }},
		{"drain.delay", func(c *Config) { c.Drain.Delay = -1 }},
	} {
		c := Default()
		tt.change(&c)
		var e *RuleError
		if err := c.Validate(); !errors.As(err, &e) || e.Key != tt.key {
			t.Errorf("%s: got %v, want that rule broken", tt.key, err)
		}
	}
}

// A node gives others the URL of its pages where they can be reached.
func TestAdvertisedConsole(t *testing.T) {
	for what, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"all nodes on one machine": {func(*Config) {}, "http://node-1:7947"},
		"gossip beyond loopback":   {func(c *Config) { c.Listen.Gossip = "10.0.0.1:7946" }, ""},
		"no gossip":                {func(c *Config) { c.Listen.Gossip = "" }, ""},
		"open":                     {func(c *Config) { c.Listen.Admin, c.Listen.Gossip, c.Console.Serve = ":7947", ":7946", "always" }, "http://node-1:7947"},
		"open, and TLS":            {func(c *Config) { c.Listen.Admin, c.Console.Serve, c.TLS.Admin = ":7947", "always", true }, "https://node-1:7947"},
		"open, and no pages":       {func(c *Config) { c.Listen.Admin = ":7947" }, ""},
		"no pages":                 {func(c *Config) { c.Console.Serve = "never"; c.Advertise.Console = "https://a:1" }, ""},
		"no admin port":            {func(c *Config) { c.Listen.Admin, c.Console.Serve = "", "always" }, ""},
		"a proxy":                  {func(c *Config) { c.Advertise.Console = "https://n1.ids.example.com" }, "https://n1.ids.example.com"},
		"another name, and TLS":    {func(c *Config) { c.Advertise.Console, c.TLS.Admin, c.Console.Serve = "a:7947", true, "always" }, "https://a:7947"},
		"not given to others":      {func(c *Config) { c.Advertise.Console = NoConsole }, ""},
		"an IPv6 address":          {func(c *Config) { c.Advertise.Console = "[2001:db8::1]:7947" }, "http://[2001:db8::1]:7947"},
	} {
		c := Default()
		tt.change(&c)
		if err := checkConsole(c.Advertise.Console); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := c.AdvertisedConsole("node-1:7947"); got != tt.want {
			t.Errorf("%s: %q, want %q", what, got, tt.want)
		}
	}
}

// TestBounds: the bounds that are named are allowed.
func TestBounds(t *testing.T) {
	n := 0
	for _, o := range Options() {
		for _, bounds := range regexp.MustCompile(`; (\d\S*) to (\d[^\s,]*)`).FindAllStringSubmatch(o.Usage, -1) {
			for _, bound := range bounds[1:] {
				n++
				c, _, err := Load(Sources{Given: map[string]string{o.Key: bound}})
				if err = errors.Join(err, c.Validate()); err != nil && strings.Contains(err.Error(), o.Key+": "+bound+" is out of range") {
					t.Error(err)
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("%d bounds were tested", n)
	}
}

// TestDerived: a lost call to etcd and the next are in time, whatever is set, and a watermark that is to be
// closer to the clock makes windows be extended as often.
func TestDerived(t *testing.T) {
	type times struct{ Window, Extend, Call, TTL, KeepAlive, Interval, Grace time.Duration }
	const second, ms = time.Second, time.Millisecond
	for _, want := range []times{
		{30 * second, 5 * second, 2 * second, 15 * second, 3 * second, 5 * second, 5 * second},
		{2 * time.Minute, 5 * second, 2 * second, 15 * second, 3 * second, 5 * second, 5 * second},
		{2 * time.Minute, 20 * second, 2 * second, 15 * second, 3 * second, time.Minute, 5 * second},
		{30 * second, second, 2 * second, 5 * second, second, second, 5 * second},
		{3 * second, 500 * ms, 600 * ms, 2 * second, 400 * ms, 5 * second, 5 * second},
	} {
		c, _, err := Load(Sources{Given: map[string]string{"lease.window": want.Window.String(),
			"lease.ttl": want.TTL.String(), "watermark.interval": want.Interval.String()}})
		if err == nil {
			err = c.Validate()
		}
		l := c.Lease
		got := times{l.Window, c.ExtendEvery(), l.CallTimeout, l.TTL, l.KeepAlive, c.Watermark.Interval, c.Watermark.Grace}
		if got != want || err != nil || got.Window <= got.Extend+2*got.Call {
			t.Errorf("%+v, want %+v; %v", got, want, err)
		}
	}
	c, _, err := Load(Sources{Given: map[string]string{"issue.max-skew": "10s", "etcd.port-clients": "7000", "limit.connections": "10"}})
	if err != nil || c.Watermark.Grace != 20*time.Second || c.Etcd.Inside.PeerPort != 7001 || c.Limit.ConnectionsPerSource != 3 {
		t.Errorf("%+v %+v %+v, %v", c.Watermark, c.Etcd.Inside, c.Limit, err)
	}
}

func TestEndpointsAreShownWithoutPasswords(t *testing.T) {
	_, settings, err := Load(Sources{Env: []string{"ALLOCATOR_ETCD_ENDPOINTS=http://u:hush@a:1"}})
	fatal.If(t, err)
	for _, s := range settings {
		if strings.Contains(s.Value, "hush") {
			t.Errorf("%s shows a password: %s", s.Key, s.Value)
		}
	}
}

func FuzzLoadFile(f *testing.F) {
	f.Add("lease:\n  window: 1m\n")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "x.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Skip()
		}
		if c, settings, err := Load(Sources{File: path}); err == nil {
			_ = c.Validate()
			if len(settings) != len(Options()) {
				t.Error("settings are missing")
			}
		}
	})
}

// A program's settings are above all others, and its base replaces the defaults.
func TestGivenByAProgram(t *testing.T) {
	base := Default()
	base.Listen.HTTP, base.Space = "", "theirs"
	c, settings, err := Load(Sources{
		Env: []string{"ALLOCATOR_SPACE=env", "ALLOCATOR_ROOT=env"}, Base: &base,
		Given: map[string]string{"space": "given", "sid-range": "24-31"},
	})
	if err != nil || c.Space != "given" || c.Root != "env" || c.Listen.HTTP != "" || c.SIDRange.String() != "24-31" {
		t.Errorf("got %+v, %v", c, err)
	}
	for _, s := range settings {
		if s.Key == "space" && s.Source != "program" {
			t.Errorf("space comes from %q", s.Source)
		}
	}
	if base.Space != "theirs" {
		t.Error("the base was written to")
	}
	_, _, err = Load(Sources{Given: map[string]string{"sid-rnge": "1", "lease.window": "30"}})
	if !errors.Is(err, ErrUnknownKey) || !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), `did you mean "sid-range"?`) || !strings.Contains(err.Error(), "(program)") {
		t.Errorf("got %v", err)
	}
}

// A layout may name its epoch, wherever it is set.
func TestEpochOfALayout(t *testing.T) {
	const text, want = "baidu,epoch=2024-02-03", "2024-02-03T00:00:00Z"
	for name, s := range map[string]Sources{
		"flag": {Flags: flags(t, "--layout", text)}, "variable": {Env: []string{"ALLOCATOR_LAYOUT=" + text}},
		"file": {File: write(t, "layout: "+text+"\n")}, "program": {Given: map[string]string{"layout": text}},
	} {
		if c, _, err := Load(s); err != nil || c.Layout != flake.Baidu || c.Epoch.Time().Format(time.RFC3339) != want {
			t.Errorf("%s: %v, epoch %v, %v", name, c.Layout, c.Epoch.Time(), err)
		}
	}
}

// TestWorkersOfAClient: by default one client leaves half of the workers to others.
func TestWorkersOfAClient(t *testing.T) {
	for _, tc := range []struct{ sids, set, want int }{
		{8, 0, 4}, {9, 0, 4}, {1, 0, 1}, {0, 0, 1}, {32, 0, 16}, {1000, 0, 128}, {8, 8, 8}, {8, 1, 1},
	} {
		w := Worker{SIDRange: lease.SIDRange{From: 3, To: flake.SID(3 + tc.sids)}, PerClient: tc.set}
		if got := w.Quota(); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}

// TestVanishedDelay: a holder that vanished is waited for until its window has passed, and workers
// have windows of their own where there are any.
func TestVanishedDelay(t *testing.T) {
	c := Default()
	if got := c.VanishedDelay(); got != 45*time.Second {
		t.Errorf("by default %v", got)
	}
	c.Worker.Window = 24 * time.Hour
	if got := c.VanishedDelay(); got != 45*time.Second {
		t.Errorf("without workers %v", got)
	}
	c.Worker.SIDRange = lease.SIDRange{From: 20, To: 32}
	if got := c.VanishedDelay(); got != 24*time.Hour+15*time.Second {
		t.Errorf("with workers %v", got)
	}
	c.Lease.Window, c.Watermark.Grace = 48*time.Hour, time.Minute
	if got := c.VanishedDelay(); got != 48*time.Hour+70*time.Second {
		t.Errorf("with long windows %v", got)
	}
}
