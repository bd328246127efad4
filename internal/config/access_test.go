package config

import (
	"errors"
	"strings"
	"testing"
)

// What is half configured is refused, by the key to change.
func TestAccessRules(t *testing.T) {
	for _, tt := range []struct {
		change func(*Config)
		key    string // "": no rule is broken
	}{
		{func(c *Config) {}, ""},
		{func(c *Config) { c.TLS = ServerTLS{Cert: "c", Key: "k", ClientCA: "a", Admin: true} }, ""},
		{func(c *Config) { c.TLS.Cert = "c" }, "tls.cert"},
		{func(c *Config) { c.TLS.Key = "k" }, "tls.cert"},
		{func(c *Config) { c.TLS.ClientCA = "a" }, "tls.client-ca"},
		{func(c *Config) { c.TLS.Admin = true }, "tls.admin"},
		{func(c *Config) { c.Auth.TokenFile = "t" }, ""},
		{func(c *Config) { c.Limit = Limit{RequestsPerSecond: 10} }, ""},
		{func(c *Config) { c.Limit.RequestsPerSecond = -1 }, "limit.requests-per-second"},
		{func(c *Config) { c.Limit.RequestsPerSecond = 1e9 }, "limit.requests-per-second"},
		{func(c *Config) { c.Limit.Connections = -1 }, "limit.connections"},
		{func(c *Config) { c.Limit.Connections = 0 }, ""},
		{func(c *Config) { c.Listen.GRPC = ":9000" }, "listen.insecure"},
		{func(c *Config) { c.Listen.HTTP = "10.0.0.1:8080" }, "listen.insecure"},
		{func(c *Config) { c.Listen.RESP = "[::]:6380" }, "listen.insecure"},
		{func(c *Config) { c.Listen.Admin = ":7947" }, ""},
		{func(c *Config) { c.Listen.Gossip = "10.0.0.1:7946" }, "gossip.key-file"},
		{func(c *Config) { c.Listen.Gossip = ":7946" }, "gossip.key-file"},
		{func(c *Config) { c.Listen.Gossip, c.Gossip.KeyFile = ":7946", "key" }, ""},
		{func(c *Config) { c.Listen.Gossip, c.Gossip.Insecure = ":7946", true }, ""},
		{func(c *Config) { c.Listen.Gossip = "" }, ""},
		{func(c *Config) { c.Listen.GRPC, c.Listen.Insecure = ":9000", true }, ""},
		{func(c *Config) { c.Listen.GRPC, c.Auth.TokenFile = ":9000", "t" }, ""},
		{func(c *Config) { c.Listen.GRPC, c.TLS.Cert, c.TLS.Key = ":9000", "c", "k" }, ""},
		{func(c *Config) { c.Auth.OpenAdmin = "all" }, "auth.open-admin"},
		{func(c *Config) { c.Auth.OpenAdmin = "none" }, ""},
		{func(c *Config) { c.HTTP.Hosts = []string{"ids.example.com", ".example.org", "*", "allocator"} }, ""},
		{func(c *Config) { c.HTTP.Hosts = []string{"https://ids.example.com"} }, "http.hosts"},
		{func(c *Config) { c.HTTP.Hosts = []string{"ids.example.com:8080"} }, "http.hosts"},
		{func(c *Config) { c.HTTP.Hosts = []string{"*.example.com"} }, "http.hosts"},
	} {
		c := Default()
		tt.change(&c)
		err := c.Validate()
		rule, _ := errors.AsType[*RuleError](err)
		if tt.key == "" && err != nil || tt.key != "" && (rule == nil || rule.Key != tt.key) {
			t.Errorf("%+v %+v: %v, want %q", c.TLS, c.Limit, err, tt.key)
		}
	}
}

func TestExposed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string // a part of each problem
	}{
		{"loopback", func(c *Config) {}, nil},
		{"loopback by other names", func(c *Config) { c.Listen.GRPC, c.Listen.HTTP = "localhost:1", "[::1]:1" }, nil},
		{"no listeners", func(c *Config) { c.Listen.GRPC, c.Listen.HTTP = "", "" }, nil},
		{"the admin port alone", func(c *Config) { c.Listen.Admin = ":7947" }, nil},
		{"everything open", func(c *Config) { c.Listen.GRPC, c.Listen.HTTP = ":9000", "10.0.0.1:8080" },
			[]string{"without TLS", "may issue IDs: set"}},
		{"admin calls too", func(c *Config) { c.Listen.GRPC, c.Auth.OpenAdmin = ":9000", "any" }, []string{"without TLS", "may issue IDs and drain the node: set"}},
		{"RESP alone", func(c *Config) { c.Listen.RESP = ":6380" }, []string{"listen.resp (:6380)", "listen.resp (:6380)"}},
		{"tokens in clear", func(c *Config) { c.Listen.GRPC, c.Auth.TokenFile = ":9000", "t" }, []string{"tokens are sent unencrypted"}},
		{"TLS without anything", func(c *Config) { c.Listen.GRPC, c.TLS.Cert = ":9000", "c" }, []string{"may issue IDs"}},
		{"TLS and tokens", func(c *Config) { c.Listen.GRPC, c.TLS.Cert, c.Auth.TokenFile = ":9000", "c", "t" }, nil},
		{"TLS and certificates", func(c *Config) { c.Listen.GRPC, c.TLS.Cert, c.TLS.ClientCA = ":9000", "c", "a" }, nil},
	} {
		c := Default()
		tt.change(&c)
		got := c.Exposed()
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q", tt.name, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], tt.want[i]) {
				t.Errorf("%s: %q, want %q", tt.name, got[i], tt.want[i])
			}
		}
	}
}

// No option holds a secret: each names the file that does.
func TestNoOptionIsASecret(t *testing.T) {
	for _, o := range Options() {
		for _, word := range []string{"password", "token", "key", "secret"} {
			if strings.Contains(o.Key, word) && !o.file {
				t.Errorf("%s is not a file: config print would show it", o.Key)
			}
		}
	}
}

// TestCheckHost: each port decides by what protects that port.
func TestCheckHost(t *testing.T) {
	for _, tt := range []struct {
		name       string
		change     func(*Config)
		api, admin bool
	}{
		{"plain", func(*Config) {}, true, true},
		{"TLS", func(c *Config) { c.TLS.Cert = "c" }, false, true},
		{"TLS with client certificates", func(c *Config) { c.TLS.Cert, c.TLS.ClientCA = "c", "a" }, false, true},
		{"TLS on the admin port too", func(c *Config) { c.TLS.Cert, c.TLS.Admin = "c", true }, false, false},
		{"tokens", func(c *Config) { c.Auth.TokenFile = "t" }, false, false},
		{"names", func(c *Config) { c.Auth.TokenFile, c.HTTP.Hosts = "t", []string{"a.example.com"} }, true, true},
	} {
		c := Default()
		tt.change(&c)
		if c.CheckHost() != tt.api || c.CheckAdminHost() != tt.admin {
			t.Errorf("%s: the API checks %t, the admin port %t", tt.name, c.CheckHost(), c.CheckAdminHost())
		}
	}
}
