package etcdpod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/text"
)

const (
	again      = time.Second      // A cluster that is not there yet is asked after this time.
	fetchLimit = 10 * time.Minute // It bounds the download of a snapshot.
)

// settings are the flags of "allocator etcd-pod run".
type settings struct {
	name, listen, dir, token, cluster string
	members                           []string
	tls, rootTLS                      string
	user, prefix                      string
	quota                             int64
	snapshot, offer                   string
}

func runCommand(a *cli.App) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "run --name NAME --members NAME=ADDRESS,…",
		Short: "Run etcd as one of the named members, and replace a member whose data are lost",
		Long: `Run decides whether etcd goes on from its data, begins a new cluster, or takes the place of
a member whose data are lost, and starts it. It answers other members on port 2382, and the
kubelet there: /livez and /readyz. A member is ready when it votes and etcd knows its users.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&s.name, "name", "", "name of this member")
	f.StringSliceVar(&s.members, "members", nil, "all members, as NAME=ADDRESS")
	f.StringVar(&s.listen, "listen", "0.0.0.0", "address to listen on; 0.0.0.0: all, also those of IPv6")
	f.StringVar(&s.dir, "dir", "/var/lib/etcd", "the member's volume")
	f.StringVar(&s.token, "token", "initial", "which cluster this is: a restored one has another token")
	f.StringVar(&s.cluster, "cluster", "allocator", "first part of etcd's initial cluster token")
	f.StringVar(&s.tls, "tls", "/etc/etcd/server", "directory with the member's certificate")
	f.StringVar(&s.rootTLS, "root-tls", "/etc/etcd/root", "directory with the certificate of the user root")
	f.StringVar(&s.user, "user", "", "user of the nodes, as in their certificate")
	f.StringVar(&s.prefix, "prefix", "", "prefix of the keys that this user may read and write")
	f.Int64Var(&s.quota, "quota", 2<<30, "maximum size of the database in bytes")
	f.StringVar(&s.snapshot, "snapshot", "", "snapshot that a new cluster begins with")
	f.StringVar(&s.offer, "snapshot-url", "", "where snapshots are offered")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := newRunner(s, logger(a))
		if err != nil {
			return err
		}
		return r.run(cmd.Context())
	}
	return cmd
}

var tokenFormat = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// runner runs one member.
type runner struct {
	s      settings
	self   host
	others []host
	all    []host
	dir    inside.Dir   // named after the token, so that a restored cluster begins beside the one before
	data   *member.Data // what etcd runs with; nil: it has not begun
	state  *state
	server inside.Server
	log    *slog.Logger
}

func newRunner(s settings, log *slog.Logger) (*runner, error) {
	all, err := hosts(s.members)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(h host) bool { return h.name == s.name })
	switch {
	case i < 0:
		return nil, cli.UsageError("--name is %q: it is not one of --members", s.name)
	case !tokenFormat.MatchString(s.token):
		return nil, cli.UsageError("--token is %q: use a-z, 0-9 and dashes, at most 63 characters", s.token)
	case s.snapshot != "" && (filepath.Base(s.snapshot) != s.snapshot || s.snapshot[0] == '.'):
		return nil, cli.UsageError("--snapshot is %q: give the name of a file without a directory", s.snapshot)
	case s.user == "" || s.prefix == "":
		return nil, cli.UsageError("--user or --prefix is empty: give the user of the nodes and their prefix")
	}
	r := &runner{s: s, self: all[i], all: all, log: log, server: etcdserver.Run}
	r.dir = inside.Dir(filepath.Join(s.dir, s.token))
	r.others = slices.Delete(slices.Clone(all), i, i+1)
	local := s.listen
	if ip := net.ParseIP(local); ip != nil && ip.IsUnspecified() {
		local = "127.0.0.1"
	}
	// Others begin a cluster because of the first answer that they get.
	holds, _, err := r.holds()
	if err != nil {
		return nil, err
	}
	r.state = &state{
		metrics: "http://" + net.JoinHostPort(local, metricsPort),
		report:  member.Report{Name: s.name, Token: s.token, Holds: holds, Snapshot: s.snapshot},
		waiting: "starting",
	}
	return r, nil
}

// run runs the member until ctx ends or etcd does.
func (r *runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel(nil)
	served.Go(func() {
		err := serve(ctx, net.JoinHostPort(r.s.listen, reportPort), r.s.tls, r.state.handler(r.log), r.log)
		if err != nil {
			cancel(fmt.Errorf("listen for other members: %w", err))
		}
	})
	step, err := r.decide(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	return ended(ctx, r.etcd(ctx, step))
}

// ended is the error of a process that was asked to stop, or could not go on.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// holds says what the volume holds, and whose data those are.
func (r *runner) holds() (member.Holds, *member.Data, error) {
	data, err := r.dir.Own()
	if err != nil || data != nil {
		return member.HoldsData, data, err
	}
	// Versions before 0.1.0 had them in data.
	for _, dir := range []string{r.dir.Data(), filepath.Join(string(r.dir), "data")} {
		if has, err := meet.HasLog(dir); err != nil || has {
			return "", nil, cmp.Or(err, fmt.Errorf("%s has the data of an etcd, and no member.json beside it says "+
				"whose: use the version that wrote them, or restore a snapshot", dir))
		}
	}
	intends, err := r.dir.Intends(r.self.peer(), r.initial(), r.clusterToken())
	if intends {
		return member.HoldsIntent, nil, err
	}
	return member.HoldsNothing, nil, err
}

// machine returns the start of the member from its volume.
func (r *runner) machine() (*member.Machine, error) {
	if err := errors.Join(os.MkdirAll(string(r.dir), 0o700), durable.SyncDir(r.s.dir)); err != nil {
		return nil, fmt.Errorf("write to the volume: %w", err)
	}
	holds, data, err := r.holds()
	if err != nil {
		return nil, err
	}
	self := r.self.name
	own := member.Own{Host: self, Node: self, Process: self, Join: r.names(), Peer: r.self.peer(), Replaces: true,
		Intends: holds == member.HoldsIntent}
	return member.NewMachine(own, data), nil
}

// names are those of all members.
func (r *runner) names() (out []string) {
	for _, h := range r.all {
		out = append(out, h.name)
	}
	return out
}

// decide carries out steps until etcd can start, and returns the last one. The data are then those to start from.
func (r *runner) decide(ctx context.Context) (step member.Step, err error) {
	m, err := r.machine()
	if err != nil {
		return step, err
	}
	step, err = meet.Start(ctx, m, &starting{runner: r}, again)
	r.data = m.Data()
	return step, err
}

// begins returns what the volume says of a new member.
func (r *runner) begins(step member.Step) *member.Data {
	d := &member.Data{
		Host:     r.self.name,
		Peer:     r.self.peer(),
		Version:  etcdstore.ServerVersion(),
		Initial:  r.initial(),
		Token:    r.clusterToken(),
		Existing: step.Action == member.Join,
	}
	if d.Existing {
		d.Initial, d.Token = step.Initial, ""
	}
	return d
}

// setAside keeps the data that are there, and deletes those that were kept before: a volume has room for one copy.
// What has neither a log nor a database was never used.
func (r *runner) setAside(why string) error {
	has, err := meet.HasLog(r.dir.Data())
	if err == nil && !has {
		_, err = os.Stat(r.dir.Database())
		if errors.Is(err, fs.ErrNotExist) {
			return os.RemoveAll(r.dir.Data())
		}
	}
	if err != nil {
		return err
	}
	for _, old := range r.dir.Copies() {
		if err := os.RemoveAll(old.Path); err != nil {
			return err
		}
	}
	return cmp.Or(r.dir.SetAside(why, time.Now()), durable.SyncDir(string(r.dir)))
}

// starting carries out the steps of a start.
type starting struct {
	*runner
	said text.Said
}

// Say logs each kind of step once a minute, and tells the kubelet.
func (s *starting) Say(step member.Step) {
	if step.Action == member.Ask {
		return
	}
	doing, level := string(step.Action)+": "+step.Why, slog.LevelInfo
	if step.Err != nil {
		level = slog.LevelWarn
	}
	if s.said.New(doing, time.Now()) {
		s.log.Log(context.Background(), level, "start of the member", "step", step.Action, "why", step.Why)
	}
	s.state.set(func(st *state) { st.waiting = doing })
}

// Write writes to the volume that this member begins the cluster, or moves data that the cluster does not know away.
func (s *starting) Write(step member.Step) (err error) {
	holds := member.HoldsIntent
	if step.Action == member.Intend {
		err = s.dir.Note(s.begins(step))
	} else {
		holds, err = member.HoldsNothing, s.setAside("removed")
	}
	if err == nil {
		s.state.set(func(st *state) { st.report.Holds = holds })
	}
	return err
}

// AskAt asks the URL of a member what is there.
func (s *starting) AskAt(ctx context.Context, url string) member.Answer {
	client, err := s.caller()
	if err != nil {
		return member.Answer{Err: err}
	}
	return inside.AskOne(ctx, client, url)
}

// Ask asks the others what their volumes hold, and for the list that a majority of those with data has.
func (s *starting) Ask(ctx context.Context) (member.Heard, error) {
	asking, err := s.caller()
	if err != nil {
		return nil, err
	}
	heard := member.Heard{}
	var endpoints []string
	for _, h := range s.others {
		report, err := ask(ctx, asking, h)
		if err != nil {
			heard[h.name] = member.Answer{Err: err}
		} else if heard[h.name] = report.Answer(s.state.report, s.names()); report.Knows(s.s.token) {
			endpoints = append(endpoints, h.client())
		}
	}
	if len(endpoints) == 0 {
		return heard, nil
	}
	admin, err := s.Dial(endpoints)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	var majority member.Answer
	if err := meet.Limited(ctx, 2*meet.Timeout, func(ctx context.Context) (err error) {
		majority.Cluster, majority.Members, err = admin.List(ctx)
		return err
	}); err != nil {
		s.log.Debug("no quorum answers", "error", err)
		return heard, nil
	}
	return member.Heard{"a majority": majority}, nil
}

// caller calls others as a member, with the certificate as it is now.
func (r *runner) caller() (*http.Client, error) {
	ours, err := clientTLS(r.s.tls, r.log)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: ours, DisableKeepAlives: true}}, err
}

// Dial connects to members as root.
func (r *runner) Dial(clients []string) (*etcdstore.Group, error) {
	t, err := clientTLS(r.s.rootTLS, r.log)
	if err != nil {
		return nil, err
	}
	return etcdstore.OpenGroup(etcdstore.Config{Endpoints: clients, TLS: t})
}

func (r *runner) group(ctx context.Context, clients []string, f func(context.Context, *etcdstore.Group) error) error {
	return meet.Call(ctx, r.Dial, clients, f)
}

// etcd runs etcd for a step until ctx ends or it does.
func (r *runner) etcd(ctx context.Context, step member.Step) error {
	if step.Action != member.Start {
		if err := r.setAside("lost"); err != nil { // What is left of data that was lost would be started from.
			return err
		}
		r.data = r.begins(step)
	}
	r.data.Version = etcdstore.ServerVersion()
	if err := r.dir.Note(r.data); err != nil {
		return err
	}
	if step.Action == member.Begin && r.s.snapshot != "" {
		if err := r.restore(ctx); err != nil {
			return err
		}
	}
	r.state.set(func(s *state) { s.waiting, s.report.Holds = "", member.HoldsData })
	runs := r.runs() // before tend changes what the volume says
	ctx, stop := context.WithCancel(ctx)
	var tended sync.WaitGroup
	defer tended.Wait()
	defer stop()
	tended.Go(func() { r.tend(ctx) })
	return r.server(ctx, runs, r.dir.Data(), func() {})
}

// runs returns what etcd runs with.
func (r *runner) runs() member.Run {
	ca, cert, key := files(r.s.tls)
	return member.Run{
		Name:     r.self.name,
		Client:   r.self.client(),
		Peer:     r.self.peer(),
		PeerName: memberName,
		IP:       r.s.listen,
		Metrics:  metricsPort,
		Initial:  r.data.Initial,
		Token:    r.data.Token,
		Existing: r.data.Existing,
		Quota:    r.s.quota,
		TLS:      member.TLS{CA: ca, Cert: cert, Key: key},
		Log:      logFormat,
	}
}

// initial lists the members as etcd's --initial-cluster does.
func (r *runner) initial() string {
	urls := map[string]string{}
	for _, h := range r.all {
		urls[h.name] = h.peer()
	}
	return inside.Initial(slices.Collect(maps.Keys(urls)), func(name string) string { return urls[name] })
}

// clusterToken is etcd's initial cluster token. Members that restored different snapshots are of
// different clusters, which do not connect. No token of ours has a plus.
func (r *runner) clusterToken() string {
	token := r.s.cluster + "-" + r.s.token
	if r.s.snapshot != "" {
		token += "+" + r.s.snapshot
	}
	return token
}

// restore makes the data of a new cluster from the snapshot, which is complete or not there.
func (r *runner) restore(ctx context.Context) error {
	file, dir := filepath.Join(string(r.dir), "fetched"), filepath.Join(string(r.dir), "restoring")
	err := os.RemoveAll(dir)
	if err == nil {
		err = r.fetch(ctx, file)
	}
	if err != nil {
		return fmt.Errorf("fetch snapshot %s: %w", r.s.snapshot, err)
	}
	if err := etcdserver.Restore(file, true, *r.data, dir); err != nil {
		return fmt.Errorf("restore snapshot %s: %w", r.s.snapshot, err)
	}
	r.log.Info("restored", "snapshot", r.s.snapshot)
	return errors.Join(os.Rename(dir, r.dir.Data()), durable.SyncDir(string(r.dir)), os.Remove(file))
}

// fetch writes the snapshot that is offered into a file.
func (r *runner) fetch(ctx context.Context, file string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	c, err := r.caller()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.s.offer+"/snapshots/"+r.s.snapshot, nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	return durable.Replace(file, 0o600, durable.From(answer.Body))
}

// tend does what a member needs once it runs: its identity is written, a learner is promoted,
// and etcd knows its users.
func (r *runner) tend(ctx context.Context) {
	var said string
	for {
		err := r.settle(ctx)
		if err == nil {
			r.state.set(func(s *state) { s.member = true })
			r.log.Info("the member votes, and etcd knows its users")
			return
		}
		if pause(ctx, again) != nil {
			return
		}
		if kind := text.Kind(err.Error()); kind != said {
			said = kind
			r.log.Info("the member is not ready yet", "error", err)
		}
	}
}

func (r *runner) settle(ctx context.Context) error {
	own := []string{r.self.client()}
	var self member.Status
	if err := r.group(ctx, own, func(ctx context.Context, g *etcdstore.Group) error {
		self = g.Ask(ctx, own[0])[0]
		return self.Err
	}); err != nil {
		return err
	}
	if err := r.answered(ctx, self); err != nil {
		return err
	}
	return r.group(ctx, own, func(ctx context.Context, g *etcdstore.Group) error {
		_, list, err := g.List(ctx)
		if err == nil && member.OtherAddress(list, self.ID, r.self.peer()) != "" {
			if err = g.Move(ctx, self.ID, r.self.peer()); err == nil {
				_, list, err = g.List(ctx)
			}
		}
		if err == nil {
			err = r.note(self, list)
		}
		if err == nil {
			err = g.Grant(ctx, r.s.user, r.s.prefix)
		}
		return err
	})
}

// note writes which member this is, if the volume does not say it.
func (r *runner) note(self member.Status, list []member.Member) error {
	noted := r.data.Noted(self, list, r.self.name, r.self.peer())
	if reflect.DeepEqual(noted, *r.data) {
		return nil
	}
	err := r.dir.Note(&noted)
	if err == nil {
		r.data = &noted
	}
	return err
}

// answered writes which member this is, and then promotes a learner: a member that votes has that on
// its volume.
func (r *runner) answered(ctx context.Context, self member.Status) error {
	if err := r.note(self, nil); err != nil {
		return err
	}
	if !self.Learner {
		return nil
	}
	// A learner does not take the call itself.
	var others []string
	for _, h := range r.others {
		others = append(others, h.client())
	}
	return r.group(ctx, others, func(ctx context.Context, g *etcdstore.Group) error { return g.Promote(ctx, self.ID) })
}
