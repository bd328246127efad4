package etcdpod

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/netsim"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// The chart gives no --listen. At the default etcd and this program are reached over IPv6 too, where the
// machine has it.
func TestListensOnIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("not run: this machine has no IPv6: %v", err)
	}
	_ = l.Close()
	a := &cli.App{}
	for _, cmd := range []*cobra.Command{runCommand(a), keepCommand(a)} {
		l, err := transport.NewListener(net.JoinHostPort(cmd.Flag("listen").DefValue, "0"), "http", nil)
		fatal.If(t, err)
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		fatal.If(t, err)
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err != nil {
				t.Errorf("%s: %v", cmd.Name(), err)
				continue
			}
			_ = c.Close()
		}
	}
}

// log gives the volume of a member a log of etcd.
func log(t *testing.T, d inside.Dir, text string) {
	t.Helper()
	wal := filepath.Join(d.Data(), "member", "wal", "0-0.wal")
	fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(wal), 0o700), os.WriteFile(wal, []byte(text), 0o600)))
}

// What a member reports is what its volume holds, from its first answer on: the others may begin
// because of it.
func TestFirstReport(t *testing.T) {
	s := settings{name: "a", members: []string{"a=127.0.0.1"}, dir: t.TempDir(), token: "1", user: "u", prefix: "/p/"}
	var r *runner
	reports := func() member.Holds {
		t.Helper()
		var err error
		r, err = newRunner(s, slog.New(slog.DiscardHandler))
		fatal.If(t, err)
		return r.state.report.Holds
	}
	if got := reports(); got != member.HoldsNothing {
		t.Errorf("an empty volume: %s", got)
	}
	fatal.If(t, os.Mkdir(string(r.Dir), 0o700))
	fatal.If(t, (&starting{runner: r}).Write(member.Step{Action: member.Intend}))
	if told, got := r.state.report.Holds, reports(); told != member.HoldsIntent || got != told {
		t.Errorf("intended: it tells %s, and %s after a restart", told, got)
	}
	fatal.If(t, os.MkdirAll(filepath.Join(r.Dir.Data(), "member", "wal"), 0o700))
	if got := reports(); got != member.HoldsIntent {
		t.Errorf("a directory without a log: %s", got)
	}
	log(t, r.Dir, "")
	if got := reports(); got != member.HoldsData {
		t.Errorf("with a log: %s", got)
	}
	fatal.If(t, r.Dir.Note(&member.Data{Host: "a", Peer: r.Own.Peer, Version: "3"}))
	_, _, err := r.Settle(t.Context(), member.Status{Member: member.Member{ID: 7}, Cluster: 5}, nil)
	fatal.If(t, err)
	if _, data, err := r.holds(); err != nil || r.state.report.Holds != member.HoldsData || data.ID != 7 || data.Cluster != 5 {
		t.Errorf("identified: %s, %+v, %v", r.state.report.Holds, data, err)
	}
	// It may have voted: without its data it does not go on with what it intended.
	fatal.If(t, os.RemoveAll(r.Dir.Data()))
	if got := reports(); got != member.HoldsNothing {
		t.Errorf("its data was lost: %s", got)
	}
}

// The data of a removed member is kept once, and the volume counts as empty.
func TestDiscard(t *testing.T) {
	r := podOf(t, func(*settings) {})
	fatal.If(t, os.Mkdir(string(r.Dir), 0o700))
	for _, text := range []string{"first", "second"} {
		log(t, r.Dir, text)
		fatal.If(t, r.Dir.Note(&member.Data{Host: "a", Peer: r.Own.Peer, Version: "3", Cluster: 5, ID: 7}))
		fatal.If(t, (&starting{runner: r}).Write(member.Step{Action: member.Discard}))
		told := r.state.report.Holds
		if own, data, err := r.holds(); err != nil || own.Intends || data != nil || told != member.HoldsNothing {
			t.Errorf("%s: %+v, %+v, %v; it tells %s", text, own, data, err, told)
		}
		kept, err := filepath.Glob(r.Dir.Data() + "-removed-*/member/wal/0-0.wal")
		if err != nil || len(kept) != 1 {
			t.Fatalf("%s: kept %v, %v", text, kept, err)
		}
		if got, err := os.ReadFile(kept[0]); err != nil || string(got) != text {
			t.Errorf("%s: kept %q, %v", text, got, err)
		}
	}
}

// Data of which no file says whose they are count as an error: as none, the member would begin again without them.
func TestDataWithoutOwner(t *testing.T) {
	for _, name := range []string{"etcd", "data"} { // "data": as written before 0.1.0
		r := podOf(t, func(*settings) {})
		wal := filepath.Join(string(r.Dir), name, "member", "wal", "0-0.wal")
		fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(wal), 0o700), os.WriteFile(wal, nil, 0o600)))
		if _, _, err := r.decide(t.Context()); err == nil || !strings.Contains(err.Error(), "no member.json") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := newRunner(r.s, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: it reports that it has no data", name)
		}
	}
}

// A member begins beside others that have data only if its volume says that it intends to.
func TestIntendsFromVolume(t *testing.T) {
	for _, want := range []member.Action{member.Wait, member.Begin} {
		r := podOf(t, func(*settings) {})
		if want == member.Begin {
			fatal.If(t, errors.Join(os.Mkdir(string(r.Dir), 0o700), (&starting{runner: r}).Write(member.Step{Action: member.Intend})))
		}
		own, data, err := r.holds() // after a restart
		fatal.If(t, err)
		if step := member.NewMachine(own, data).Step(member.Heard{"b": {Began: true}}); step.Action != want {
			t.Errorf("%+v, want %s", step, want)
		}
	}
}

// Before etcd runs, the volume says how the member begins, and has nothing that was left of data before. The copy of
// the data of a removed member stays.
func TestEtcdBegins(t *testing.T) {
	const joined = "b=https://10.0.0.2:2380,a=https://10.0.0.1:2380"
	for _, step := range []member.Step{{Action: member.Begin}, {Action: member.Join, Initial: joined}, {Action: member.Start}} {
		r := podOf(t, func(*settings) {})
		log(t, r.Dir, "removed")
		fatal.If(t, r.SetAside("removed"))
		var data *member.Data
		if step.Action == member.Start {
			data = &member.Data{Host: "a", Peer: r.Own.Peer, ID: 7, Version: "3.5.9"}
		} else {
			fatal.If(t, os.MkdirAll(filepath.Join(r.Dir.Data(), "member", "snap"), 0o700))
		}
		ran := errors.New("it ran")
		r.server = func(_ context.Context, run member.Run, dir string, _ func()) error {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: etcd finds what was left: %v", step.Action, err)
			}
			text, err := os.ReadFile(filepath.Join(string(r.Dir), "member.json"))
			fatal.If(t, err)
			says, err := inside.ParseData(text)
			if err != nil || says.Initial != run.Initial || says.Existing != (step.Action == member.Join) || (says.ID == 7) != (step.Action == member.Start) ||
				says.Version != etcdstore.ServerVersion() {
				t.Errorf("%s: the volume says %+v, %v", step.Action, says, err)
			}
			return ran
		}
		if err := r.etcd(t.Context(), step, data); !errors.Is(err, ran) {
			t.Errorf("%s: %v", step.Action, err)
		}
		if copies := r.Dir.Copies(); len(copies) != 1 || !strings.Contains(copies[0].Path, "-removed-") {
			t.Errorf("%s: copies %+v, want that of the removed member", step.Action, copies)
		}
	}
}

// A database whose log was lost may be all that is left of a cluster: it is kept.
func TestDatabaseWithoutLog(t *testing.T) {
	r := podOf(t, func(*settings) {})
	fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(r.Dir.Database()), 0o700), os.WriteFile(r.Dir.Database(), []byte("data"), 0o600)))
	fatal.If(t, r.SetAside("lost"))
	if copies := r.Dir.Copies(); len(copies) != 1 || copies[0].Size != 4 {
		t.Errorf("kept %+v", copies)
	}
}

// A member whose volume names another URL asks there, as a member, before it starts: it may be the volume of another.
func TestAskAt(t *testing.T) {
	r := podOf(t, func(*settings) {})
	ca, cert, key := files(r.s.tls)
	pair, err := tls.LoadX509KeyPair(cert, key)
	fatal.If(t, err)
	pem, err := os.ReadFile(ca)
	fatal.If(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/members" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("X-Etcd-Cluster-ID", "7")
		_, _ = io.WriteString(w, `[{"id":1,"peerURLs":["https://c:2380"],"name":"c","clientURLs":["https://c:2379"]}]`)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	defer server.Close()
	if a := (&starting{runner: r}).AskAt(t.Context(), server.URL); a.Err != nil || a.Cluster != 7 || len(a.Members) != 1 {
		t.Errorf("%+v", a)
	}
}

// A certificate of root that cannot be read ends the start: as silence, it would have the member begin beside a quorum.
func TestAskWithoutRoot(t *testing.T) {
	r := podOf(t, func(s *settings) { s.members = []string{"a=10.0.0.1", "b=127.0.0.1"} })
	l, err := net.Listen("tcp", "127.0.0.1:"+reportPort)
	if err != nil {
		t.Skipf("the port of reports is taken: %v", err)
	}
	_, cert, key := files(r.s.tls)
	pair, err := tls.LoadX509KeyPair(cert, key)
	fatal.If(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(member.Report{Name: "b", Token: "1", Holds: member.HoldsData})
	}))
	_ = server.Listener.Close()
	server.Listener, server.TLS = l, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	defer server.Close()
	if step, _, err := r.decide(t.Context()); err == nil || !strings.Contains(err.Error(), "open none") {
		t.Errorf("got %+v, %v", step, err)
	}
}

// calls returns a request of the owner of a certificate; "": without one.
func calls(path, name string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if name != "" {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	}
	return r
}

// Snapshots hold all that etcd has: they are for members alone, and nothing else of the directory is offered.
func TestOffer(t *testing.T) {
	const name = "2026-11-20t12-00-00z.snapshot"
	dir := t.TempDir()
	for _, file := range []string{name, "notes", "." + name + "-123"} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, file), []byte("data"), 0o600))
	}
	for _, tc := range []struct {
		dir, path, name string
		code            int
	}{
		{dir, "/snapshots/" + name, memberName, http.StatusOK},
		{dir, "/snapshots/" + name, "", http.StatusForbidden},
		{dir, "/snapshots/" + name, rootName, http.StatusForbidden},
		{dir, "/snapshots/notes", memberName, http.StatusBadRequest},
		{dir, "/snapshots/." + name + "-123", memberName, http.StatusBadRequest},
		{dir, "/snapshots/..%2f" + name, memberName, http.StatusBadRequest},
		{dir, "/snapshots/none.snapshot", memberName, http.StatusNotFound},
		{"", "/snapshots/" + name, memberName, http.StatusBadRequest},
		{dir, "/livez", "", http.StatusOK},
	} {
		w := httptest.NewRecorder()
		offer(tc.dir).ServeHTTP(w, calls(tc.path, tc.name))
		if w.Code != tc.code {
			t.Errorf("%s in %q for %q: %d, want %d: %s", tc.path, tc.dir, tc.name, w.Code, tc.code, w.Body)
		}
	}
}

// A member is ready when it votes, alive while it waits, and tells members alone what it has.
func TestAnswers(t *testing.T) {
	well := true
	etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !well {
			http.Error(w, "no leader", http.StatusServiceUnavailable)
		}
	}))
	defer etcd.Close()
	s := &state{metrics: etcd.URL, report: member.Report{Name: "a", Token: "1", Holds: member.HoldsIntent}}
	for _, tc := range []struct {
		name        string
		waits       string
		votes       bool
		well        bool
		live, ready int
	}{
		{"it waits", "wait: b", false, false, http.StatusOK, http.StatusServiceUnavailable},
		{"etcd opens a large database", "", false, false, http.StatusOK, http.StatusServiceUnavailable},
		{"a learner", "", false, true, http.StatusOK, http.StatusServiceUnavailable},
		{"it votes", "", true, true, http.StatusOK, http.StatusOK},
		{"etcd is ill", "", true, false, http.StatusServiceUnavailable, http.StatusServiceUnavailable},
	} {
		well = tc.well
		s.set(func(s *state) { s.waiting, s.member = tc.waits, tc.votes })
		for path, want := range map[string]int{"/livez": tc.live, "/readyz": tc.ready} {
			w := httptest.NewRecorder()
			s.handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, calls(path, ""))
			if w.Code != want {
				t.Errorf("%s: %s is %d, want %d: %s", tc.name, path, w.Code, want, w.Body)
			}
		}
	}
	for name, want := range map[string]int{memberName: http.StatusOK, rootName: http.StatusForbidden, "": http.StatusForbidden} {
		w := httptest.NewRecorder()
		s.handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, calls("/report", name))
		if w.Code != want {
			t.Errorf("a report to %q: %d, want %d", name, w.Code, want)
		}
		if r, err := meet.ParseReport(w.Body.Bytes(), "a"); want == http.StatusOK && (err != nil || r != s.report) {
			t.Errorf("reported %+v, %v; want %+v", r, err, s.report)
		}
	}
}

// A snapshot is due after its time, and one that fails is counted and tried again.
func TestKeeperDo(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		latest time.Duration // It was written so long ago. Negative: there is none.
		tried  bool
	}{
		{"none", -1, true},
		{"due", time.Hour, true},
		{"not due", time.Hour - time.Second, false},
	} {
		tried := 0
		k := &snapshotKeeper{
			app:             &cli.App{Err: io.Discard},
			store:           meet.Snapshots{Dir: t.TempDir(), Layout: stamp, Suffix: suffix, Keep: 1},
			every:           time.Hour,
			defragmentEvery: 24 * time.Hour,
			failing:         map[string]bool{},
			taken:           prometheus.NewGauge(prometheus.GaugeOpts{}),
			failures:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "failures"}, []string{"task"}),
			defragmented:    now,
		}
		k.connect = func() (*etcdstore.Group, error) {
			tried++
			return nil, errors.New("no certificate")
		}
		if tc.latest >= 0 {
			fatal.If(t, os.WriteFile(k.store.Path("", now.Add(-tc.latest)), nil, 0o600))
		}
		k.do(t.Context(), now)
		k.do(t.Context(), now)
		if want := map[bool]int{true: 2}[tc.tried]; tried != want || testutil.ToFloat64(k.failures.WithLabelValues("snapshot")) != float64(want) {
			t.Errorf("%s: tried %d times, failed %v, want %d", tc.name, tried, testutil.ToFloat64(k.failures.WithLabelValues("snapshot")), want)
		}
		if tc.latest > 0 && !tc.tried && testutil.ToFloat64(k.taken) != float64(now.Add(-tc.latest).Unix()) {
			t.Errorf("%s: the metric has %v", tc.name, testutil.ToFloat64(k.taken))
		}
		// It is not put off by a failure.
		k.store.Dir = ""
		for range 2 {
			k.do(t.Context(), now.Add(24*time.Hour))
		}
		if got := testutil.ToFloat64(k.failures.WithLabelValues("defragment")); got != 2 {
			t.Errorf("%s: defragmentations that failed: %v, want 2", tc.name, got)
		}
	}
}

// podOf returns the member a of a and b, with certificates.
func podOf(t *testing.T, change func(*settings)) *runner {
	t.Helper()
	s := settings{
		name:    "a",
		members: []string{"a=10.0.0.1", "b=10.0.0.2"},
		listen:  "127.0.0.1",
		dir:     t.TempDir(),
		cluster: "allocator",
		token:   "1",
		user:    "u",
		prefix:  "/p/",
		tls:     t.TempDir(),
		rootTLS: "none",
	}
	authority := certstest.NewAuthority(t, "ours")
	pair := authority.Issue(t, memberName, -time.Hour, time.Hour)
	for name, text := range map[string][]byte{"ca.crt": authority.PEM, "tls.crt": pair.Cert, "tls.key": pair.Key} {
		certstest.File(t, s.tls, name, text)
	}
	change(&s)
	r, err := newRunner(s, slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	return r
}

// etcd runs with what the volume says: how the member began.
func TestRuns(t *testing.T) {
	const all, joined = "a=https://10.0.0.1:2380,b=https://10.0.0.2:2380", "b=https://10.0.0.2:2380,a=https://10.0.0.1:2380"
	for _, tc := range []struct {
		step     member.Step
		existing bool
		initial  string
		token    string
	}{
		{member.Step{Action: member.Begin}, false, all, "allocator-1"},
		{member.Step{Action: member.Join, Initial: joined}, true, joined, ""},
	} {
		r := podOf(t, func(s *settings) { s.quota = 1 << 27 })
		d, err := r.Take(tc.step, nil)
		fatal.If(t, errors.Join(os.Mkdir(string(r.Dir), 0o700), err))
		if d.Host != "a" || d.Peer != "https://10.0.0.1:2380" || d.Version != etcdstore.ServerVersion() || d.ID != 0 || d.Cluster != 0 {
			t.Errorf("%s: the volume says %+v", tc.step.Action, d)
		}
		got := r.Runs(*d)
		want := member.Run{
			Version:  etcdstore.ServerVersion(),
			Name:     "a",
			Client:   "https://10.0.0.1:2379",
			Peer:     "https://10.0.0.1:2380",
			PeerName: "etcd-member",
			IP:       "127.0.0.1",
			Metrics:  "2381",
			Initial:  tc.initial,
			Token:    tc.token,
			Existing: tc.existing,
			Quota:    1 << 27,
			TLS:      member.TLS{CA: r.s.tls + "/ca.crt", Cert: r.s.tls + "/tls.crt", Key: r.s.tls + "/tls.key"},
			Log:      "json",
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", tc.step.Action, got, want)
		}
	}
}

// A member is done once it votes at the address that the others have of it, and etcd knows its users. Which member it
// is, is on the volume before that, also while it learns and while no majority answers.
func TestSettle(t *testing.T) {
	const own, roleAndUsers = "https://10.0.0.1:2380", "role u: /p/, users"
	for _, tc := range []struct {
		name        string
		learner     bool
		lost        bool   // A majority does not answer.
		peer        string // what the list has as its address
		full        bool   // etcd has no space for the users.
		asked, says string // what etcd was asked to change, and the error
		done        bool
	}{
		{name: "a learner", learner: true, peer: own, asked: "promote 1"},
		{name: "no majority", lost: true, peer: own, says: "list the members of etcd"},
		{name: "another address", peer: "https://10.0.0.9:2380", asked: "move 1 to " + own},
		{name: "the grant fails", peer: own, full: true, asked: roleAndUsers, says: "enable authentication"},
		{name: "all well", peer: own, asked: roleAndUsers, done: true},
	} {
		synctest.Test(t, func(t *testing.T) { // The limits of the calls are of its time.
			var asked []string
			network := netsim.New(0)
			etcd := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(func(_ context.Context, req any,
				_ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
				header := &etcdserverpb.ResponseHeader{ClusterId: 7, MemberId: 1}
				switch req := req.(type) {
				case *etcdserverpb.StatusRequest:
					return &etcdserverpb.StatusResponse{Header: header, IsLearner: tc.learner}, nil
				case *etcdserverpb.MemberListRequest:
					if tc.lost {
						return nil, rpctypes.ErrGRPCNoLeader
					}
					return &etcdserverpb.MemberListResponse{Header: header, Members: []*etcdserverpb.Member{
						{ID: 1, Name: "a", PeerURLs: []string{tc.peer}, ClientURLs: []string{"http://a:2379"}},
					}}, nil
				case *etcdserverpb.MemberPromoteRequest:
					asked = append(asked, fmt.Sprint("promote ", req.ID))
				case *etcdserverpb.MemberUpdateRequest:
					asked = append(asked, fmt.Sprintf("move %d to %s", req.ID, strings.Join(req.PeerURLs, " and ")))
				case *etcdserverpb.AuthRoleGrantPermissionRequest:
					asked = append(asked, fmt.Sprintf("role %s: %s", req.Name, req.Perm.Key))
				case *etcdserverpb.AuthEnableRequest:
					if asked = append(asked, "users"); tc.full {
						return nil, rpctypes.ErrGRPCNoSpace
					}
				}
				return &etcdserverpb.AuthEnableResponse{}, nil // The other answers are empty too.
			}))
			etcdserverpb.RegisterMaintenanceServer(etcd, etcdserverpb.UnimplementedMaintenanceServer{})
			etcdserverpb.RegisterClusterServer(etcd, etcdserverpb.UnimplementedClusterServer{})
			etcdserverpb.RegisterAuthServer(etcd, etcdserverpb.UnimplementedAuthServer{})
			for _, host := range []string{"a", "b"} { // A learner is promoted by another member.
				l, err := network.Listen(host + ":2379")
				fatal.If(t, err)
				go func() { _ = etcd.Serve(l) }()
			}
			r := podOf(t, func(*settings) {})
			r.Client = func(name string) string { return "http://" + name + ":2379" }
			r.Root = func() (etcdstore.Config, error) {
				return etcdstore.Config{Options: []grpc.DialOption{grpc.WithContextDialer(network.Dialer("a"))}}, nil
			}
			log(t, r.Dir, "running")
			fatal.If(t, r.Dir.Note(&member.Data{Host: "a", Peer: own, Version: etcdstore.ServerVersion()}))
			done, err := r.settle(t.Context())
			etcd.Stop()
			if done != tc.done || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: done %v, %v; want %v, %q", tc.name, done, err, tc.done, tc.says)
			}
			if got := strings.Join(asked, ", "); got != tc.asked {
				t.Errorf("%s: etcd was asked to %q, want %q", tc.name, got, tc.asked)
			}
			if data, err := r.Dir.Own(); err != nil || data == nil || data.Cluster != 7 || data.ID != 1 {
				t.Errorf("%s: the volume says %+v, %v", tc.name, data, err)
			}
		})
	}
}

// A snapshot is fetched whole, or not at all.
func TestFetch(t *testing.T) {
	for _, tc := range []struct {
		name, says string
		answer     func(http.ResponseWriter)
	}{
		{"a snapshot", "", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "data") }},
		{"there is none", "404 Not Found: no such snapshot", func(w http.ResponseWriter) {
			http.Error(w, "no such snapshot", http.StatusNotFound)
		}},
		{"nothing", "204 No Content", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }},
		{"half of it", "unexpected EOF", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "8")
			_, _ = io.WriteString(w, "data")
		}},
	} {
		asked := ""
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.URL.Path
			tc.answer(w)
		}))
		r := podOf(t, func(p *settings) { p.snapshot, p.offer = "x.snapshot", s.URL })
		file := filepath.Join(t.TempDir(), "fetched")
		err := r.fetch(t.Context(), file)
		s.Close()
		if asked != "/snapshots/x.snapshot" || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: asked for %s, %v; want %q", tc.name, asked, err, tc.says)
		}
		if text, _ := os.ReadFile(file); err == nil && string(text) != "data" {
			t.Errorf("%s: got %q", tc.name, text)
		}
	}
}

// Members that restore different snapshots under one token are not one cluster, and say what they restore.
func TestClusterOfSnapshot(t *testing.T) {
	seen := map[string]string{}
	for _, snapshot := range []string{"", "s1.snapshot", "s2.snapshot"} {
		r, err := newRunner(settings{
			name:     "a",
			members:  []string{"a=127.0.0.1"},
			dir:      t.TempDir(),
			cluster:  "allocator",
			token:    "restored-1",
			snapshot: snapshot,
			user:     "u",
			prefix:   "/p/",
		}, slog.New(slog.DiscardHandler))
		fatal.If(t, err)
		token := r.Token
		if other, ok := seen[token]; ok {
			t.Errorf("snapshots %q and %q are one cluster: %s", snapshot, other, token)
		}
		seen[token] = snapshot
		if got := r.state.report.Snapshot; got != snapshot {
			t.Errorf("reports snapshot %q, has %q", got, snapshot)
		}
	}
}
