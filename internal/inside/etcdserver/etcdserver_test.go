package etcdserver

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/member"
)

// A member listens at its address, is known by its name, and asks everybody for a certificate. No
// variable of the environment changes that.
func TestConfig(t *testing.T) {
	r := member.Run{
		Name:    "a",
		Client:  "https://a:2379",
		Peer:    "https://a:2380",
		IP:      "127.0.0.9",
		Initial: "a=https://a:2380",
		Token:   "token",
		Quota:   1 << 27,
		TLS:     member.TLS{CA: "ca", Cert: "cert", Key: "key"},
	}
	t.Setenv("ETCD_NAME", "b")
	for _, existing := range []bool{false, true} {
		r.Existing = existing
		cfg, err := config(r, t.TempDir())
		fatal.If(t, err)
		if (cfg.ClusterState == embed.ClusterStateFlagNew) == existing || cfg.Name != "a" || cfg.InitialCluster != r.Initial ||
			cfg.InitialClusterToken != r.Token {
			t.Errorf("existing %v: it starts as %s, of %s, token %s", existing, cfg.ClusterState, cfg.InitialCluster,
				cfg.InitialClusterToken)
		}
		for name, urls := range map[string][2]string{
			"clients": {cfg.ListenClientUrls[0].String(), cfg.AdvertiseClientUrls[0].String()},
			"peers":   {cfg.ListenPeerUrls[0].String(), cfg.AdvertisePeerUrls[0].String()},
		} {
			want := map[string][2]string{
				"clients": {"https://127.0.0.9:2379", r.Client},
				"peers":   {"https://127.0.0.9:2380", r.Peer},
			}
			if urls != want[name] {
				t.Errorf("%s: it listens at and is known by %q, want %q", name, urls, want[name])
			}
		}
		for name, side := range map[string]transport.TLSInfo{"clients": cfg.ClientTLSInfo, "peers": cfg.PeerTLSInfo} {
			if !side.ClientCertAuth || side.TrustedCAFile != "ca" || side.CertFile != "cert" || side.KeyFile != "key" {
				t.Errorf("%s may call without a certificate: %+v", name, side)
			}
		}
		// The database has a bound.
		if cfg.QuotaBackendBytes != r.Quota || cfg.AutoCompactionMode != embed.CompactorModePeriodic ||
			cfg.AutoCompactionRetention != "1h" {
			t.Errorf("quota %d, compaction %q of %q", cfg.QuotaBackendBytes, cfg.AutoCompactionMode,
				cfg.AutoCompactionRetention)
		}
	}
}

// A member that waits for the others of its cluster ends when it is stopped.
func TestRunStops(t *testing.T) {
	r := member.Run{Name: "a", Client: "http://" + loopback.Address(), Peer: "http://" + loopback.Address(), IP: "127.0.0.1", Token: "token"}
	r.Initial = "a=" + r.Peer + ",b=http://" + loopback.Address() + ",c=http://" + loopback.Address()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, r, t.TempDir(), stop) }()
	select {
	case err := <-ended:
		fatal.If(t, err)
	case <-time.After(wait.Most):
		t.Error("it still runs")
	}
}

// A member in a pod knows others by the name in their certificates, clients do not have it, and metrics need none.
func TestConfigPod(t *testing.T) {
	cfg, err := config(member.Run{Client: "https://a:2379", Peer: "https://a:2380", PeerName: "etcd-member", IP: "0.0.0.0", Metrics: "2381",
		TLS: member.TLS{CA: "ca", Cert: "cert", Key: "key"}}, t.TempDir())
	fatal.If(t, err)
	peer, client := cfg.PeerTLSInfo, cfg.ClientTLSInfo
	if !slices.Equal(peer.AllowedCNs, []string{"etcd-member"}) || !peer.SkipClientSANVerify || client.AllowedCNs != nil || client.SkipClientSANVerify {
		t.Errorf("peers: %+v, clients: %+v", peer, client)
	}
	if urls := cfg.ListenMetricsUrls; len(urls) != 1 || urls[0].String() != "http://0.0.0.0:2381" {
		t.Errorf("metrics at %v", urls)
	}
}

// The ID of a cluster is the one that etcd gives it, and a list that etcd refuses has none.
func TestClusterOf(t *testing.T) {
	for _, token := range []string{"allocator-1", "restored-1", ""} {
		for _, initial := range []string{
			"10.0.0.1=http://10.0.0.1:2380",
			"b=https://b:2380,a=https://a:2380,c=https://[fd00::1]:2380",
			"a=http://a:2380,a=http://a:2381,b= http://b:2380",
			"a=:", "a", "", "a=http://a", "a=ftp://a:1", "a=http://a:1/x", "a=http://a:1,b=http://a:1",
		} {
			got, err := inside.ClusterOf(initial, token)
			urls, refused := types.NewURLsMap(initial)
			want := uint64(0)
			if refused == nil && len(urls) > 0 {
				var c *membership.RaftCluster
				if c, refused = membership.NewClusterFromURLsMap(zap.NewNop(), token, urls); refused == nil {
					want = uint64(c.ID())
				}
			}
			if got != want || (err == nil) != (want != 0) {
				t.Errorf("%q, %q: %x, %v; etcd has %x, %v", initial, token, got, err, want, refused)
			}
		}
	}
}

// A member that is alone listens on sockets beside each other, and is known as before to others.
func TestConfigSocket(t *testing.T) {
	cfg, err := config(member.Run{Name: "127.0.0.1", Client: "unix:///d/sockets/clients", Peer: "http://127.0.0.1:2380",
		IP: "127.0.0.1", Initial: "127.0.0.1=http://127.0.0.1:2380"}, t.TempDir())
	fatal.If(t, err)
	got := []string{cfg.ListenClientUrls[0].Path, cfg.ListenPeerUrls[0].Host, cfg.AdvertiseClientUrls[0].String(),
		cfg.AdvertisePeerUrls[0].String()}
	want := []string{"/d/sockets/clients", "/d/sockets/members", "unix:///d/sockets/clients", "http://127.0.0.1:2380"}
	if !slices.Equal(got, want) || cfg.Validate() != nil {
		t.Errorf("got %q, want %q; %v", got, want, cfg.Validate())
	}
}

// What etcd logs has the form of the node's log, with its fields as attributes.
func TestLogger(t *testing.T) {
	var log strings.Builder
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	to := logger(slog.NewTextHandler(&log, nil), level)
	to.Warn("too low")
	to.With(zap.String("a", "1")).Error("no\nroom", zap.Error(errors.New("disk")))
	level.SetLevel(zap.FatalLevel)
	to.Error("it stops")
	_, got, _ := strings.Cut(log.String(), " ")
	if want := "level=ERROR msg=\"etcd inside\" a=1 line=\"no\\nroom\" error=disk\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
