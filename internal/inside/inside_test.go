package inside

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// alone returns the only member of a list.
func alone(d Dir, log slog.Handler) *Inside {
	return nodeAt("127.0.0.1", d, Config{Log: slog.New(log)})
}

// nodeAt returns the member at host of a list; none: it is alone.
func nodeAt(host string, d Dir, cfg Config, join ...string) *Inside {
	cfg.Etcd.Inside.Join = join
	i := &Inside{Site: siteOf(cfg, host, host), cfg: cfg}
	i.Dir = d
	return i
}

// A member that waits for others ends its waiting when a restore was prepared, and takes it over.
func TestDecidePrepared(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	d := Dir(t.TempDir())
	i := alone(d, slog.DiscardHandler)
	i.Own.Join = append(i.Own.Join, "localhost") // Nobody is there.
	time.AfterFunc(askEvery/2, func() {
		if err := meet.WriteJSON(d.restoredMarker(), member.Data{Host: "a"}); err != nil {
			t.Error(err)
		}
	})
	if data, err := i.decide(ctx, nil); !errors.Is(err, errPrepared) || data != nil {
		t.Errorf("got %v, %v; want %v", data, err, errPrepared)
	}
	if taken, err := d.takeRestored(time.Now()); !taken || err != nil || d.prepared() {
		t.Errorf("taken over: %v, %v, prepared %v", taken, err, d.prepared())
	}
}

// A member that begins starts without what is left of the data that it lost, and keeps that.
func TestBeginsWithoutLeftovers(t *testing.T) {
	d := Dir(t.TempDir())
	fatal.If(t, os.MkdirAll(filepath.Dir(d.Database()), 0o700))
	i := alone(d, slog.DiscardHandler)
	if data, err := i.decide(t.Context(), nil); err != nil || data == nil || data.Token == "" {
		t.Fatalf("got %+v, %v", data, err)
	}
	if _, err := os.Stat(d.Data()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("etcd's directory: %v", err)
	}
	if kept, err := filepath.Glob(d.Data() + "-lost-*/member/snap"); err != nil || len(kept) != 1 {
		t.Errorf("kept %v, %v", kept, err)
	}
	// That it begins is written first: after a crash it begins, although others may have begun with it.
	initial, token := i.founding()
	if intends, err := d.Intends(i.Own.Peer, initial, token); !intends || err != nil {
		t.Errorf("it intends to begin: %v, %v", intends, err)
	}
}

// What is left of lost data would be started from: where it cannot be moved, the member does not begin.
func TestLeftoversInTheWay(t *testing.T) {
	d := Dir(t.TempDir())
	fatal.If(t, os.MkdirAll(filepath.Dir(d.Database()), 0o700))
	for now, in := time.Now().UTC(), 0; in < 120; in++ {
		fatal.If(t, os.MkdirAll(d.Data()+"-lost-"+now.Add(time.Duration(in)*time.Second).Format(snapshotTime)+"/x", 0o700))
	}
	i := alone(d, slog.DiscardHandler)
	if data, err := i.decide(t.Context(), nil); !errors.Is(err, ErrDir) {
		t.Errorf("got %+v, %v", data, err)
	}
}

// A directory is not started while its member answers elsewhere: where it was before, which need not be
// in the list, or where the others say that it is.
func TestDecideElsewhere(t *testing.T) {
	for _, name := range []string{"a copy", "left behind"} {
		l, err := net.Listen("tcp", "127.0.0.2:0")
		if err != nil {
			t.Skipf("this machine has one address of loopback: %v", err)
		}
		elsewhere := "http://" + l.Addr().String()
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != membersPath {
				http.NotFound(w, r)
				return
			}
			w.Header().Set(clusterID, "7")
			_, _ = fmt.Fprintf(w, `[{"id":1,"peerURLs":[%q],"name":"a","clientURLs":["http://a:2"]}]`, elsewhere)
		}))
		_ = s.Listener.Close()
		s.Listener = l
		s.Start()
		ctx, cancel := context.WithCancel(t.Context())
		cfg, join := Config{Log: slog.New(slog.NewTextHandler(until{"still runs", cancel}, nil))}, []string{"127.0.0.1"}
		if name == "left behind" {
			join = append(join, "127.0.0.2")
			cfg.Etcd.Inside.PeerPort = l.Addr().(*net.TCPAddr).Port
		}
		i := nodeAt("127.0.0.1", Dir(t.TempDir()), cfg, join...)
		data := member.Data{Host: "a", Peer: elsewhere, Cluster: 7, ID: 1}
		if name == "left behind" {
			data.Peer = i.Own.Peer
		}
		if got, err := i.decide(ctx, &data); got != nil || err != nil {
			t.Errorf("%s: its member runs, and got %+v, %v; want to wait", name, got, err)
		}
		s.Close()
		if got, err := i.decide(t.Context(), &data); got == nil || err != nil {
			t.Errorf("%s: its member does not run any more, and got %+v, %v; want to start", name, got, err)
		}
		cancel()
	}
}

// A member joins only as the majority's list has it: the list of one member may be behind, and say of this one
// that it has never started.
func TestDecideJoin(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("this machine has one address of loopback: %v", err)
	}
	grpcAt, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	of := config.Etcd{Inside: config.Inside{PeerPort: l.Addr().(*net.TCPAddr).Port}}
	own := of.PeerURL("127.0.0.1")
	behind := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != membersPath {
			http.NotFound(w, r)
			return
		}
		w.Header().Set(clusterID, "7")
		_, _ = fmt.Fprintf(w, `[{"id":1,"peerURLs":["http://127.0.0.2:1"],"name":"a","clientURLs":["http://%s"]},
			{"id":2,"peerURLs":[%q],"isLearner":true}]`, grpcAt.Addr(), own)
	}))
	_ = behind.Listener.Close()
	behind.Listener = l
	behind.Start()
	defer behind.Close()
	majority := &listing{}
	server := grpc.NewServer()
	etcdserverpb.RegisterClusterServer(server, majority)
	go func() { _ = server.Serve(grpcAt) }()
	defer server.Stop()
	for _, tc := range []struct {
		name, says string
		me         *etcdserverpb.Member
		joins      bool
	}{
		{"it has started since", "its data was lost", &etcdserverpb.Member{ID: 2, Name: "b", ClientURLs: []string{"http://b:2"}}, false},
		{"it has a vote", "its data was lost", &etcdserverpb.Member{ID: 2}, false},
		{"no majority answers", "etcd inside is not started", nil, false},
		{"as it was added", "", &etcdserverpb.Member{ID: 2, IsLearner: true}, true},
	} {
		if majority.me = tc.me; tc.me != nil {
			tc.me.PeerURLs = []string{own}
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
		cfg := Config{Etcd: of, Log: slog.New(slog.NewTextHandler(until{tc.says, cancel}, nil))}
		i := nodeAt("127.0.0.1", Dir(t.TempDir()), cfg, "127.0.0.1", "127.0.0.2")
		if tc.says == "" {
			i.cfg.Log = slog.New(slog.DiscardHandler)
		}
		data, err := i.decide(ctx, nil)
		if err != nil || (data != nil) != tc.joins || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("%s: got %+v, %v, %v; want it to join: %v", tc.name, data, err, ctx.Err(), tc.joins)
		}
		if data != nil && (!data.Existing || !strings.Contains(data.Initial, "a=http://127.0.0.2:9")) {
			t.Errorf("%s: it begins as %+v, want the list that the majority has", tc.name, data)
		}
		cancel()
	}
}

// listing is a member that knows what the majority knows.
type listing struct {
	etcdserverpb.UnimplementedClusterServer
	me *etcdserverpb.Member
}

func (l *listing) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
	if l.me == nil {
		return nil, errors.New("no leader")
	}
	a := &etcdserverpb.Member{ID: 1, Name: "a", PeerURLs: []string{"http://127.0.0.2:9"}, ClientURLs: []string{"http://127.0.0.1:1"}}
	return &etcdserverpb.MemberListResponse{Header: &etcdserverpb.ResponseHeader{ClusterId: 7}, Members: []*etcdserverpb.Member{a, l.me}}, nil
}

// until ends something once a text is logged.
type until struct {
	text string
	end  func()
}

func (u until) Write(line []byte) (int, error) {
	if strings.Contains(string(line), u.text) {
		u.end()
	}
	return len(line), nil
}

// Who the member is, is written before it is started, and so is a copy of the database before another version opens it.
func TestUpWritesFirst(t *testing.T) {
	const older = "3.5.9"
	d := Dir(t.TempDir())
	i := alone(d, slog.DiscardHandler)
	i.cfg.Program = filepath.Join(string(d), "none")
	up := func(says string) *member.Data {
		t.Helper()
		if c, err := i.up(t.Context()); c != nil || err == nil || !strings.Contains(err.Error(), says) {
			t.Fatalf("got %v, %v; want %q", c, err, says)
		}
		data, err := d.read()
		if err != nil || data == nil {
			t.Fatalf("the marker: %+v, %v", data, err)
		}
		return data
	}
	data := up("start " + i.cfg.Program)
	if run, err := d.running(); err != nil || data.Token == "" || run != i.Runs(*data) {
		t.Errorf("it begins: %+v, to run with %+v, %v", data, run, err)
	}
	wal := filepath.Join(d.Data(), "member", "wal", "0-0.wal")
	if err := errors.Join(os.MkdirAll(filepath.Dir(wal), 0o700), os.MkdirAll(filepath.Dir(d.Database()), 0o700),
		os.WriteFile(wal, nil, 0o600), os.WriteFile(d.Database(), []byte("data"), 0o600)); err != nil {
		t.Fatal(err)
	}
	ranWith := func(version string) {
		t.Helper()
		data.Version = version
		fatal.If(t, meet.WriteJSON(d.marker(), data))
	}
	up("start ")
	if list, err := d.Snapshots().List(time.Now()); err != nil || len(list) > 0 {
		t.Errorf("the same version: %v, %v; want no copy", list, err)
	}
	ranWith(older)
	if got := up("start "); got.Version != etcdstore.ServerVersion() || got.Token != data.Token {
		t.Errorf("after the upgrade: %+v", got)
	}
	if list, err := d.Snapshots().List(time.Now()); err != nil || len(list) != 1 || list[0].Size != 4 {
		t.Errorf("before the upgrade: %v, %v; want a copy", list, err)
	}
	// Without a copy the new version opens nothing.
	ranWith(older)
	fatal.If(t, errors.Join(os.RemoveAll(d.Snapshots().Dir), os.WriteFile(d.Snapshots().Dir, nil, 0o600)))
	if got := up("snapshot before the upgrade of etcd from " + older); got.Version != older {
		t.Errorf("without a copy: %+v", got)
	}
}

// A member that waited and is silent now has begun: it closes the port at which it waited before etcd opens it.
// All tell each other when they have written that they begin.
func TestDecideSilentAfterWaiting(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("this machine has one address of loopback: %v", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	later, err := net.Listen("tcp", fmt.Sprintf("127.0.0.3:%d", port))
	if err != nil {
		t.Skipf("the port is taken: %v", err)
	}
	cfg := Config{Log: slog.New(slog.DiscardHandler), Node: "one"}
	cfg.Etcd.Inside.PeerPort = port
	i := nodeAt("127.0.0.1", Dir(t.TempDir()), cfg, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	var asked [2]atomic.Int32
	for n, l := range []net.Listener{l, later} {
		w := member.Waiting{Host: i.Own.Join[n+1], Node: i.Own.Join[n+1], Process: i.Own.Join[n+1], Join: i.Own.Join}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			// One waits at the first question alone, the other from the second on.
			if waits := r.URL.Path == meetPath && (asked[n].Add(1) == 1) == (n == 0); !waits {
				http.NotFound(out, r)
				return
			}
			w.Now, w.Intends = time.Now(), n == 0
			if a := askOne(r.Context(), http.DefaultClient, i.Own.Peer); n == 1 && a.Waiting != nil {
				w.Intends = a.Waiting.Intends
			}
			_ = json.NewEncoder(out).Encode(w)
		}))
		_ = s.Listener.Close()
		s.Listener = l
		s.Start()
		defer s.Close()
	}
	if data, err := i.decide(ctx, nil); err != nil || data == nil {
		t.Errorf("got %+v, %v after %d and %d questions; want it to begin", data, err, asked[0].Load(), asked[1].Load())
	}
}

// A clock is compared when an answer arrives: one that is kept gets old.
func TestAskOneSkew(t *testing.T) {
	const by = time.Hour
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(member.Waiting{Host: "a", Process: "x", Now: time.Now().Add(by)})
	}))
	defer s.Close()
	if a := askOne(t.Context(), s.Client(), s.URL); a.Waiting == nil || (a.Skew-by).Abs() > meet.Timeout {
		t.Errorf("%+v, want a clock that is %v ahead", a, by)
	}
}

// What an address answers is whole or an error: an answer without members would not count as silence otherwise.
func TestAskOne(t *testing.T) {
	const list = `[{"id":1,"peerURLs":["http://a:1"],"name":"a","clientURLs":["http://a:2"]}]`
	for _, tc := range []struct {
		name           string
		waiting        string // empty: etcd runs there
		cluster, list  string
		code           int
		waits, members bool
	}{
		{name: "waits", waiting: `{"host":"a","process":"x"}`, waits: true},
		{name: "something else", waiting: `<html>`},
		{name: "runs", cluster: "10", list: list, code: http.StatusOK, members: true},
		{name: "of no cluster", list: list, code: http.StatusOK},
		{name: "no list", cluster: "10", list: `<html>`, code: http.StatusOK},
		{name: "a failure", cluster: "10", list: list, code: http.StatusServiceUnavailable},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(clusterID, tc.cluster)
			switch {
			case r.URL.Path == meetPath && tc.waiting != "":
				_, _ = io.WriteString(w, tc.waiting)
			case r.URL.Path == membersPath:
				w.WriteHeader(tc.code)
				_, _ = io.WriteString(w, tc.list)
			default:
				http.NotFound(w, r)
			}
		}))
		a := askOne(t.Context(), s.Client(), s.URL)
		s.Close()
		if (a.Waiting != nil) != tc.waits || (len(a.Members) == 1 && a.Cluster == 0x10) != tc.members ||
			(a.Err == nil) != (tc.waits || tc.members) {
			t.Errorf("%s: %+v", tc.name, a)
		}
	}
}

// Members show their certificates to each other, and what one of them would refuse is said at the start.
func TestTLS(t *testing.T) {
	dir, authority := t.TempDir(), certstest.NewAuthority(t, "ours")
	ca := certstest.File(t, dir, "ca.pem", authority.PEM)
	files := func(name string, from *certstest.Authority, until time.Duration, uses ...x509.ExtKeyUsage) config.TLS {
		cert, key := from.Issue(t, name, -2*time.Hour, until, uses...).Write(t, dir, name)
		return config.TLS{CA: ca, Cert: cert, Key: key}
	}
	good := files("good", authority, time.Hour)
	for _, tc := range []struct {
		name  string
		files config.TLS
		host  string
		says  string
	}{
		{"none", config.TLS{}, "127.0.0.1", ""},
		{"good", good, "127.0.0.1", ""},
		{"by an intermediate", files("chained", authority.Intermediate(t, "between"), time.Hour), "127.0.0.1", ""},
		{"of another host", good, "10.0.0.1", "it is not for 10.0.0.1"},
		{"to serve alone", files("serves", authority, time.Hour, x509.ExtKeyUsageServerAuth), "127.0.0.1", "clientAuth"},
		{"to call alone", files("calls", authority, time.Hour, x509.ExtKeyUsageClientAuth), "127.0.0.1", "both ways"},
		{"its time is over", files("old", authority, -time.Hour), "127.0.0.1", "expired"},
		{"of another authority", files("foreign", certstest.NewAuthority(t, "theirs"), time.Hour), "127.0.0.1", "both ways"},
	} {
		err := checkTLS(tc.files, tc.host, time.Now())
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v; want %q", tc.name, err, tc.says)
		}
		if later := tc.name == "its time is over"; errors.Is(err, certs.ErrTime) != later {
			t.Errorf("%s: %v; it may be right at another time: %v", tc.name, err, later)
		}
	}
	// The authority is valid for a day.
	if err := checkTLS(files("long", authority, 48*time.Hour), "127.0.0.1", time.Now().Add(25*time.Hour)); !errors.Is(err,
		certs.ErrTime) {
		t.Errorf("the time of the authority is over: %v", err)
	}
	conf, err := tlsOf(good)
	fatal.If(t, err)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS, s.Config.ErrorLog = conf, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	defer s.Close()
	for name, caller := range map[string]*tls.Config{"a member": conf, "nobody": {RootCAs: authority.Pool()}} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: caller, DisableKeepAlives: true}}
		if _, _, _, err := meet.Get(t.Context(), c, s.URL); (err == nil) != (name == "a member") {
			t.Errorf("%s calls: %v", name, err)
		}
	}
}

// A member that does not stop is killed, and its end is logged once.
func TestStopKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &child{ended: make(chan struct{})}
		stopped := 0
		log := slog.New(slog.NewTextHandler(io.MultiWriter(until{"does not stop", func() { close(c.ended) }},
			until{"etcd inside stopped", func() { stopped++ }}), nil))
		began := time.Now()
		c.stop(log)
		if took := time.Since(began); took <= 0 || took >= config.InsideStop {
			t.Errorf("it stopped after %v, want less than %v", took, config.InsideStop)
		}
		c.stop(log) // It has ended.
		if stopped != 1 {
			t.Errorf("it is logged %d times that it stopped", stopped)
		}
	})
}

// When nobody says who the members are, those of before are still needed, and none is healthy.
func TestHealth(t *testing.T) {
	i := alone(Dir(t.TempDir()), slog.DiscardHandler)
	down := member.Status{Err: errors.New("down")}
	i.saw(member.Status{Size: 5}, []member.Status{{}, {}, down})
	want := Health{Up: true, Quorum: member.Quorum{Voters: 3, Healthy: 2, Needs: 2}, Size: 5}
	health := func() Health {
		h := i.Health()
		if h.Free <= 0 {
			t.Errorf("%d bytes are free", h.Free)
		}
		h.Free = 0
		return h
	}
	if got := health(); got != want {
		t.Errorf("two answer: %+v, want %+v", got, want)
	}
	i.saw(down, nil)
	want = Health{Quorum: member.Quorum{Voters: 3, Needs: 2}}
	if got := health(); got != want {
		t.Errorf("nobody answers: %+v, want %+v", got, want)
	}
}

// A machine has one address in the list, or says which.
func TestOwnAddress(t *testing.T) {
	for _, tc := range []struct {
		address  string
		join     []string
		host, ip string
		says     string
		passes   bool
	}{
		{"", nil, "127.0.0.1", "127.0.0.1", "", false},
		{"", []string{"127.0.0.9"}, "127.0.0.9", "127.0.0.9", "", false},
		{"", []string{"198.51.100.1", "127.0.0.1"}, "127.0.0.1", "127.0.0.1", "", false},
		{"", []string{"127.0.0.1", "localhost"}, "", "", "127.0.0.1 and localhost are all addresses of this machine",
			false},
		{"127.0.0.1", []string{"127.0.0.1", "localhost"}, "127.0.0.1", "127.0.0.1", "", false},
		{"", []string{"198.51.100.1", "198.51.100.2"}, "", "", "none of 198.51.100.1, 198.51.100.2 is an address", true},
		{"a.invalid", nil, "", "", "a.invalid has no address", true},
	} {
		host, ip, err := OwnAddress(t.Context(), config.Inside{Address: tc.address, Join: tc.join})
		if host != tc.host || ip != tc.ip || (err == nil) != (tc.says == "") ||
			err != nil && !strings.Contains(err.Error(), tc.says) || errors.Is(err, ErrPasses) != tc.passes {
			t.Errorf("%q in %q: %s, %s, %v; want %s, %s, %q", tc.address, tc.join, host, ip, err, tc.host, tc.ip, tc.says)
		}
	}
}

// A learner gets no vote before its directory says which member it is.
func TestPromotesWhatIsNoted(t *testing.T) {
	const longest = 4095 // A path may have so many bytes on Linux: member.json does, and no other file can be made.
	path := t.TempDir()
	for room := longest - len("/member.json"); len(path)+1 < room; {
		path += "/" + strings.Repeat("d", min(200, room-len(path)-1))
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Skipf("paths are shorter here: %v", err)
	}
	for _, tc := range []struct {
		name  string
		dir   Dir
		noted bool
	}{
		{"noted", Dir(t.TempDir()), true},
		{"not noted", Dir(path), false},
	} {
		text := `{"host":"a","peer":"http://a:1","version":"3.7.3","members":[{"id":1,"name":"b"}]}`
		if err := os.WriteFile(tc.dir.marker(), []byte(text), 0o600); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		var log strings.Builder
		// No other can promote it, so a try is an error.
		i := nodeAt("a", tc.dir, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		i.answered(t.Context(), member.Status{Member: member.Member{ID: 4, Learner: true}, Cluster: 7}, nil)
		data, err := tc.dir.read()
		if err != nil || (data.Cluster == 7 && data.ID == 4) != tc.noted {
			t.Errorf("%s: %+v, %v", tc.name, data, err)
		}
		if err == nil && len(data.Members) != 1 { // It does not know the list, and the directory did.
			t.Errorf("%s: the members are %+v", tc.name, data.Members)
		}
		if tried := strings.Contains(log.String(), "cannot become a voting member"); tried != tc.noted {
			t.Errorf("%s: tried %v: %s", tc.name, tried, &log)
		}
	}
}

// Each start of a member that is alone says that its disk has the only copy, and a member that becomes so.
func TestAlone(t *testing.T) {
	d := Dir(t.TempDir())
	fatal.If(t, meet.WriteJSON(d.marker(), member.Data{Host: "a", Peer: "http://a:1", Version: "3.7.3"}))
	var log strings.Builder
	i := nodeAt("a", d, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	stopped, stop := context.WithCancel(t.Context())
	stop()
	one := []member.Member{{ID: 1, Name: "a"}}
	for _, tc := range []struct {
		name   string
		starts bool
		list   []member.Member
		says   bool
	}{
		{"first start", true, one, true},
		{"later", false, one, false},
		{"second start", true, one, true},
		{"another joins", false, append(one, member.Member{ID: 2, Name: "b"}), false},
		{"it leaves", false, one, true},
	} {
		if tc.starts {
			i.tend(stopped, &child{})
		}
		log.Reset()
		i.answered(t.Context(), member.Status{Member: member.Member{ID: 1}, Cluster: 7}, tc.list)
		if says := strings.Contains(log.String(), "has one member"); says != tc.says {
			t.Errorf("%s: %s", tc.name, &log)
		}
	}
}

// A snapshot leaves etcd what it needs of their common disk, and one that failed waits for a while.
func TestSnapshotRoom(t *testing.T) {
	const size = 1 << 30
	if err := room(size+minFree, size); err != nil {
		t.Errorf("room for both: %v", err)
	}
	if err := room(size+minFree-1, size); err == nil {
		t.Error("a snapshot takes what etcd needs")
	}
	var log strings.Builder
	i := alone(Dir(t.TempDir()), slog.NewTextHandler(&log, nil))
	i.cfg.Etcd.Inside.SnapshotEvery, i.cfg.Etcd.Inside.SnapshotKeep = time.Hour, 1
	logs := func() string {
		defer log.Reset()
		i.snapshotIfDue(t.Context(), "http://127.0.0.1:1", member.Status{Size: 1 << 62})
		return log.String()
	}
	// Those beyond the setting go even so: the message tells people to lower it.
	old := time.Now().Add(-2 * time.Hour)
	for n := range 3 {
		path := i.Dir.Snapshots().Path("hourly", old.Add(time.Duration(n)*time.Minute))
		fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)))
	}
	if got := logs(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "too little disk free for a snapshot") {
		t.Errorf("a disk without room: %q", got)
	}
	if list, err := i.Dir.Snapshots().List(time.Now()); err != nil || len(list) != 1 {
		t.Errorf("left %v, %v", list, err)
	}
	// Another reason would be logged.
	i.Dir = Dir(filepath.Join(string(i.Dir), "none"))
	if got := logs(); got != "" {
		t.Errorf("tried again at once: %q", got)
	}
	i.snapshotAfter = time.Now().Add(-time.Second)
	i.snapshotIfDue(t.Context(), "http://127.0.0.1:1", member.Status{Member: member.Member{Learner: true}})
	i.snapshotIfDue(t.Context(), "http://127.0.0.1:1", member.Status{Revision: 1})
	if got := log.String(); got != "" {
		t.Errorf("a learner has not all data yet, or nobody has written any, and it tried: %q", got)
	}
	i.cfg.Etcd.Inside.SnapshotEvery = 0
	if got := logs(); got != "" {
		t.Errorf("no snapshots are wanted, and one was tried: %q", got)
	}
	i.cfg.Etcd.Inside.SnapshotEvery = time.Hour
	if got := logs(); !strings.Contains(got, "no such file") || !i.snapshotAfter.After(time.Now()) {
		t.Errorf("after the pause: %q, then at %v", got, i.snapshotAfter)
	}
}

// A member that ends ends the calls to it: its snapshot, of which no byte came, does not keep the next start.
func TestTendEndsWithItsMember(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	c, called := &child{ended: make(chan struct{})}, make(chan struct{})
	server := grpc.NewServer()
	hanging := hangingMember{called: called}
	etcdserverpb.RegisterMaintenanceServer(server, hanging)
	etcdserverpb.RegisterClusterServer(server, hanging)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	var log strings.Builder
	cfg := Config{Log: slog.New(slog.NewTextHandler(&log, nil))}
	cfg.Etcd.Inside.ClientPort = l.Addr().(*net.TCPAddr).Port
	cfg.Etcd.Inside.SnapshotEvery, cfg.Etcd.Inside.SnapshotKeep = time.Hour, 1
	i := nodeAt("127.0.0.1", Dir(t.TempDir()), cfg)
	fatal.If(t, meet.WriteJSON(i.Dir.marker(), member.Data{Host: "a", Peer: "http://a:1", Version: "3.7.3"}))
	tended := make(chan struct{})
	go func() {
		defer close(tended)
		i.tend(t.Context(), c)
	}()
	for _, ends := range []<-chan struct{}{called, tended} {
		select {
		case <-ends:
		case <-time.After(wait.Most):
			t.Fatal("it waits for what its member does not send")
		}
		if ends == called {
			close(c.ended)
		}
	}
	if strings.Contains(log.String(), "snapshot of etcd inside failed") {
		t.Errorf("the end of its member is no failure of a snapshot: %s", &log)
	}
}

// hangingMember answers everything but a snapshot.
type hangingMember struct {
	etcdserverpb.UnimplementedMaintenanceServer
	etcdserverpb.UnimplementedClusterServer
	called chan struct{}
}

func (hangingMember) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: 1, ClusterId: 7}}, nil
}

func (hangingMember) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse,
	error) {
	return &etcdserverpb.MemberListResponse{
		Header:  &etcdserverpb.ResponseHeader{ClusterId: 7},
		Members: []*etcdserverpb.Member{{ID: 1, Name: "a", PeerURLs: []string{"http://a:1"}}},
	}, nil
}

func (m hangingMember) Snapshot(_ *etcdserverpb.SnapshotRequest, s etcdserverpb.Maintenance_SnapshotServer) error {
	close(m.called)
	<-s.Context().Done()
	return s.Context().Err()
}

// A member that was started long ago has answered: also one that hangs when a node takes it over is stopped.
func TestQuietAtFirst(t *testing.T) {
	i, now := alone(Dir(t.TempDir()), slog.DiscardHandler), time.Now()
	fatal.If(t, i.Dir.Prepare(member.Run{}))
	for _, tc := range []struct {
		name  string
		c     *child
		after time.Duration
		want  bool
	}{
		{"taken over", &child{}, 2 * startsWithin, true},
		{"taken over at its start", &child{}, startsWithin / 2, false},
		{"started now", &child{cmd: &exec.Cmd{}}, 2 * startsWithin, false},
	} {
		if got := i.quiet(tc.c, now.Add(tc.after)); got.known != tc.want {
			t.Errorf("%s: %+v, want known: %v", tc.name, got, tc.want)
		}
	}
}

// A silence is said once, and a member is stopped that took connections for a minute and answered nobody.
func TestSilence(t *testing.T) {
	quiet := errors.New("no answer")
	type at struct {
		second int
		err    error
		hangs  bool
		want   quietStep
	}
	for name, steps := range map[string][]at{
		"it starts, and waits for the others": {{0, quiet, true, 0}, {10, quiet, true, sayQuiet}, {90, quiet, true, 0},
			{91, nil, false, sayAnswers}},
		"a short silence": {{0, nil, false, 0}, {5, quiet, true, 0}, {14, quiet, true, 0}, {15, nil, false, 0},
			{20, quiet, true, 0}, {29, quiet, true, 0}},
		"it hangs": {{0, nil, false, 0}, {5, quiet, true, 0}, {15, quiet, true, sayQuiet}, {64, quiet, true, 0},
			{65, quiet, true, stopHanging}, {70, quiet, true, 0}},
		"it is busy": {{0, nil, false, 0}, {5, quiet, false, 0}, {15, quiet, false, sayQuiet}, {100, quiet, true, 0},
			{159, quiet, true, 0}, {160, quiet, true, stopHanging}},
		"the members answer it now and then": {{0, nil, false, 0}, {5, quiet, true, 0}, {50, quiet, false, sayQuiet},
			{100, quiet, true, 0}, {150, quiet, true, 0}},
	} {
		var s silence
		for _, step := range steps {
			if got := s.step(time.Unix(int64(step.second), 0), step.err, step.hangs); got != step.want {
				t.Errorf("%s: %v after %d s, want %v", name, got, step.second, step.want)
			}
		}
	}
}
