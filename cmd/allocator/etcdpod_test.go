package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/certs"
)

// secretsAPI is the part of Kubernetes' API that has Secrets.
type secretsAPI struct {
	mu      sync.Mutex // guards secrets
	secrets map[string]map[string]any
}

func (a *secretsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const path = "/api/v1/namespaces/prod/secrets"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, path), "/")
	fail := func(code int, text string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
	}
	var body map[string]any
	switch {
	case r.Header.Get("Authorization") != "Bearer token-of-the-pod" || !strings.HasPrefix(r.URL.Path, path):
		fail(403, "forbidden")
		return
	case r.Method == http.MethodGet && a.secrets[name] == nil:
		fail(404, "not found")
		return
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(a.secrets[name])
		return
	case json.NewDecoder(r.Body).Decode(&body) != nil || body["kind"] != "Secret":
		fail(400, "no Secret")
		return
	case r.Method == http.MethodPost:
		name = body["metadata"].(map[string]any)["name"].(string)
		if a.secrets[name] != nil {
			fail(409, "already exists")
			return
		}
	case r.Method != http.MethodPut || a.secrets[name] == nil:
		fail(405, "no such object")
		return
	}
	a.secrets[name] = body
}

// etcdPods are members on loopback, as the chart runs them.
type etcdPods struct {
	*testing.T
	dir  string
	net  string // first three parts of the addresses, with a dot
	pods []*etcdPod
}

type etcdPod struct {
	name, address string
	*proc.Process // the latest; nil: none ran
}

// newEtcdPods returns n members, at most five, that do not run, with their certificates.
func newEtcdPods(t *testing.T, n int) *etcdPods {
	t.Helper()
	e := &etcdPods{T: t, dir: t.TempDir(), net: claimNet(t)}
	for i := range n {
		e.pods = append(e.pods, &etcdPod{name: fmt.Sprintf("ids-etcd-%d", i), address: e.net + strconv.Itoa(i+1)})
	}
	e.secrets()
	return e
}

// TestEtcdPodsGrow raises the members from one to three and to five, as an upgrade of the chart does: new
// pods come with the whole list, and when they are ready, those before get it from the last to the first.
func TestEtcdPodsGrow(t *testing.T) {
	tier.Nightly(t, "runs five members")
	t.Parallel() // most of the time it waits
	e := newEtcdPods(t, 5)
	pods := e.pods
	before := 0
	for _, n := range []int{1, 3, 5} {
		e.pods = pods[:n]
		var added []int
		for i := before; i < n; i++ {
			e.start(i, "initial", "")
			added = append(added, i)
		}
		e.ready(added...)
		for i := before - 1; i >= 0; i-- {
			e.start(i, "initial", "")
			e.ready(i)
		}
		if got := e.members(); len(got) != n {
			t.Fatalf("the members are %x, want %d", got, n)
		}
		key := "/allocator/default/" + strconv.Itoa(n)
		if _, err := e.client("client", n-1).Put(t.Context(), key, "1"); err != nil {
			t.Fatal(err)
		}
		before = n
	}
	r, err := e.client("client", 4).Get(t.Context(), "/allocator/default/", clientv3.WithPrefix())
	if err != nil || len(r.Kvs) != 3 {
		t.Errorf("of three keys the last member has %v, %v", r, err)
	}
}

func TestEtcdPods(t *testing.T) {
	tier.Nightly(t, "runs three members")
	t.Parallel() // most of the time it waits
	e := newEtcdPods(t, 3)

	// The first two wait for the third: one of them could be a member that lost its data.
	e.start(0, "initial", "")
	e.start(1, "initial", "")
	e.logged(0, "ids-etcd-2 to answer")
	e.start(2, "initial", "")
	e.ready(0, 1, 2)
	e.access()
	ids := e.members()

	// A member that is killed goes on from its data.
	e.pods[1].kill()
	e.start(1, "initial", "")
	e.ready(1)
	if got := e.members(); got["ids-etcd-1"] != ids["ids-etcd-1"] {
		t.Errorf("after a kill the member has another ID: %x, before %x", got, ids)
	}

	// One whose volume is lost is replaced.
	e.pods[2].kill()
	e.lose(2)
	e.start(2, "initial", "")
	e.ready(2)
	if got := e.members(); len(got) != 3 || got["ids-etcd-2"] == ids["ids-etcd-2"] {
		t.Errorf("after the loss of a volume the members are %x, before %x", got, ids)
	}

	// One that somebody removed comes back as another.
	root := e.client("root", 1) // The one that is removed ends, perhaps before it has answered.
	e.until(func() error {      // etcd refuses until the new member has been connected for some seconds.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := root.MemberRemove(ctx, ids["ids-etcd-0"])
		if errors.Is(err, rpctypes.ErrMemberNotFound) { // The answer of an attempt before was lost.
			return nil
		}
		return err
	})
	e.logged(0, "ended by itself")
	e.start(0, "initial", "")
	e.ready(0)
	if got := e.members(); len(got) != 3 || got["ids-etcd-0"] == ids["ids-etcd-0"] {
		t.Errorf("after a removal the members are %x, before %x", got, ids)
	}

	e.snapshots()

	// Without a quorum nobody begins again.
	for _, i := range []int{0, 1} {
		e.pods[i].kill()
		e.lose(i)
	}
	e.start(0, "restored-1", "")
	e.start(1, "restored-1", "")
	e.logged(0, "restore a snapshot")
	e.logged(1, "restore a snapshot")
}

// claimNet returns the first three parts of addresses on loopback that no other run on this machine
// uses: pods have fixed ports. The claim is a listener at the last address.
func claimNet(t *testing.T) string {
	t.Helper()
	for range 100 {
		prefix := fmt.Sprintf("127.%d.%d.", 28+rand.IntN(200), rand.IntN(256))
		if l, err := net.Listen("tcp", prefix+"254:2382"); err == nil {
			t.Cleanup(func() { _ = l.Close() })
			return prefix
		}
	}
	t.Fatal("no addresses on loopback are free")
	return ""
}

func (p *etcdPod) kill() {
	if p.Process != nil {
		p.KillGroup()
	}
}

func (e *etcdPods) lose(i int) {
	fatal.If(e, os.RemoveAll(filepath.Join(e.dir, e.pods[i].name)))
}

func (e *etcdPods) path(secret string) string { return filepath.Join(e.dir, secret) }

// secrets makes the certificates, and finds them unchanged the second time.
func (e *etcdPods) secrets() {
	e.Helper()
	api := &secretsAPI{secrets: map[string]map[string]any{}}
	server := httptest.NewTLSServer(api)
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	account := e.path("account")
	fatal.If(e, os.Mkdir(account, 0o700))
	for name, text := range map[string][]byte{"token": []byte("token-of-the-pod"), "namespace": []byte("prod\n"), "ca.crt": ca} {
		fatal.If(e, os.WriteFile(filepath.Join(account, name), text, 0o600))
	}
	make := func() string {
		code, out, errs := program(e.T, "", "etcd-pod", "secrets", "--name", "ids-etcd", "--user", "allocator-default",
			"--dns", e.net+"1,"+e.net+"2,"+e.net+"3,"+e.net+"4,"+e.net+"5,"+e.net+"9,ids-etcd-0.ids-etcd-peers", "--account", account, "--api", server.URL)
		if code != 0 {
			e.Fatalf("secrets: %d: %s", code, errs)
		}
		return out
	}
	if out := make(); strings.Count(out, ": made\n") != 4 {
		e.Fatalf("the first time:\n%s", out)
	}
	if out := make(); strings.Count(out, ": unchanged\n") != 3 {
		e.Fatalf("the second time:\n%s", out)
	}
	api.mu.Lock()
	delete(api.secrets, "ids-etcd-client")
	api.mu.Unlock()
	if out := make(); strings.Count(out, ": unchanged\n") != 2 || !strings.Contains(out, "ids-etcd-client: made") {
		e.Fatalf("after one was deleted:\n%s", out)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for name, s := range api.secrets {
		b, err := json.Marshal(s["data"])
		fatal.If(e, err)
		var data map[string][]byte
		fatal.If(e, json.Unmarshal(b, &data))
		fatal.If(e, os.Mkdir(e.path(name), 0o700))
		for file, text := range data {
			fatal.If(e, os.WriteFile(filepath.Join(e.path(name), file), text, 0o600))
		}
	}
}

func (e *etcdPods) start(i int, token, snapshot string, more ...string) {
	e.Helper()
	p := e.pods[i]
	p.kill()
	var all []string
	for _, q := range e.pods {
		all = append(all, q.name+"="+q.address)
	}
	cmd := exec.Command("allocator", append([]string{"etcd-pod", "run", "--name", p.name, "--members", strings.Join(all, ","),
		"--listen", p.address, "--dir", filepath.Join(e.dir, p.name), "--token", token, "--snapshot", snapshot,
		"--tls", e.path("ids-etcd-server"), "--root-tls", e.path("ids-etcd-root"), "--user", "allocator-default",
		"--prefix", "/allocator/default/"}, more...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Process = proc.Run(e, cmd)
	e.Cleanup(p.KillGroup)
}

// logged waits until a member logs something.
func (e *etcdPods) logged(i int, text string) {
	e.Helper()
	e.until(func() error {
		if !strings.Contains(e.pods[i].Log(), text) {
			return fmt.Errorf("%s did not log %q", e.pods[i].name, text)
		}
		return nil
	})
}

func (e *etcdPods) until(f func() error) {
	e.Helper()
	wait.NoError(e, "pods", f)
}

// ready waits as the kubelet does, which has no certificate.
func (e *etcdPods) ready(pods ...int) {
	e.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 20 * time.Second}
	defer c.CloseIdleConnections()
	get := func(i int, path string) (int, string, error) {
		r, err := c.Get("https://" + e.pods[i].address + ":2382" + path)
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return r.StatusCode, string(b), err
	}
	for _, i := range pods {
		e.until(func() error {
			code, text, err := get(i, "/readyz")
			if err == nil && code != 200 {
				err = fmt.Errorf("%s: %d %s", e.pods[i].name, code, text)
			}
			return err
		})
		if code, text, err := get(i, "/livez"); code != 200 {
			e.Errorf("%s is ready and not alive: %d %s %v", e.pods[i].name, code, text, err)
		}
		if code, text, err := get(i, "/report"); code != 403 {
			e.Errorf("%s reports to a client without a certificate: %d %s %v", e.pods[i].name, code, text, err)
		}
	}
}

// client connects to a member as a user.
func (e *etcdPods) client(user string, i int) *clientv3.Client {
	e.Helper()
	dir := e.path("ids-etcd-" + user)
	c, err := certs.NewClient("test", certs.ClientFiles{CA: dir + "/ca.crt", Cert: dir + "/tls.crt", Key: dir + "/tls.key"}, tls.VersionTLS12, nil)
	fatal.If(e, err)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + e.pods[i].address + ":2379"}, TLS: c.Config(), Logger: zap.NewNop()})
	fatal.If(e, err)
	e.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

// access checks that nodes may use their prefix, and that members' certificates and nodes may do nothing else.
func (e *etcdPods) access() {
	e.Helper()
	nodes := e.client("client", 0)
	if _, err := nodes.Put(e.Context(), "/allocator/default/x", "1"); err != nil {
		e.Errorf("nodes may not write their prefix: %v", err)
	}
	if _, err := nodes.Put(e.Context(), "/allocator/other/x", "1"); err == nil {
		e.Error("nodes may write outside of their prefix")
	}
	if _, err := nodes.MemberList(e.Context()); err == nil {
		_, err = nodes.MemberAddAsLearner(e.Context(), []string{"https://" + e.net + "9:2380"})
		if err == nil {
			e.Error("nodes may add members")
		}
	}
	if _, err := e.client("server", 0).Get(e.Context(), "/allocator/default/x"); err == nil {
		e.Error("a member's certificate may read keys")
	}
	// A node's certificate is signed by the same authority, and is not one of a peer.
	dir := e.path("ids-etcd-client")
	c, err := certs.NewClient("test", certs.ClientFiles{CA: dir + "/ca.crt", Cert: dir + "/tls.crt", Key: dir + "/tls.key"}, tls.VersionTLS12, nil)
	fatal.If(e, err)
	peer := &http.Client{Transport: &http.Transport{TLSClientConfig: c.Config()}, Timeout: 20 * time.Second}
	defer peer.CloseIdleConnections()
	if r, err := peer.Get("https://" + e.pods[0].address + ":2380/members"); err == nil {
		_ = r.Body.Close()
		e.Errorf("a node's certificate reaches the port of peers: %s", r.Status)
	}
}

// members returns the voting members by name.
func (e *etcdPods) members() map[string]uint64 {
	e.Helper()
	r, err := e.client("root", min(1, len(e.pods)-1)).MemberList(e.Context())
	fatal.If(e, err)
	out := map[string]uint64{}
	for _, m := range r.Members {
		if m.IsLearner {
			e.Errorf("%s is still a learner", m.Name)
		}
		out[m.Name] = m.ID
	}
	return out
}

// etcdCommand runs "allocator etcd" with the environment that the chart gives to its pods.
func (e *etcdPods) etcdCommand(words ...string) string {
	e.Helper()
	root := e.path("ids-etcd-root")
	var endpoints []string
	for _, p := range e.pods {
		endpoints = append(endpoints, "https://"+p.address+":2379")
	}
	cmd := exec.Command("allocator", append([]string{"etcd"}, words...)...)
	cmd.Env = append(os.Environ(), "ALLOCATOR_ETCD_ENDPOINTS="+strings.Join(endpoints, ","), "ALLOCATOR_ETCD_TLS_CA="+root+"/ca.crt",
		"ALLOCATOR_ETCD_TLS_CERT="+root+"/tls.crt", "ALLOCATOR_ETCD_TLS_KEY="+root+"/tls.key")
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.Fatalf("etcd %v: %v: %s", words, err, out)
	}
	return string(out)
}

// snapshots takes three and keeps two, defragments, and restores.
func (e *etcdPods) snapshots() {
	e.Helper()
	var endpoints []string
	for _, p := range e.pods {
		endpoints = append(endpoints, "https://"+p.address+":2379")
	}
	admin := func(args ...string) string {
		e.Helper()
		code, out, errs := program(e.T, "", append(append([]string{"etcd-pod"}, args...), "--endpoints", strings.Join(endpoints, ","),
			"--root-tls", e.path("ids-etcd-root"))...)
		if code != 0 {
			e.Fatalf("%v: %d: %s", args, code, errs)
		}
		return out
	}
	root := e.client("root", 0)
	if _, err := root.Put(e.Context(), "/allocator/default/kept", "1"); err != nil {
		e.Fatal(err)
	}
	dir := e.path("snapshots")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "2020-01-01t00-00-00z.snapshot"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600)); err != nil {
		e.Fatal(err)
	}
	out := admin("snapshot", "--dir", dir, "--keep", "1")
	if !strings.Contains(out, "; removed 1; there are:") {
		e.Errorf("snapshot says\n%s", out)
	}
	name := regexp.MustCompile(`\S+\.snapshot`).FindString(out)
	if _, err := root.Put(e.Context(), "/allocator/default/lost", "1"); err != nil {
		e.Fatal(err)
	}
	for _, words := range [][]string{{"defragment", "--yes"}, {"status"}} {
		out := e.etcdCommand(words...)
		want := map[string]string{"defragment": ": defragmented", "status": "follower"}[words[0]]
		if n := strings.Count(out, want); n < 2 {
			e.Errorf("etcd %s says %d times %q:\n%s", words[0], n, want, out)
		}
	}

	// All members are stopped, and begin again from the snapshot under another token.
	before, err := root.MemberList(e.Context())
	fatal.If(e, err)
	for _, p := range e.pods {
		p.kill()
	}
	offer := proc.Run(e, exec.Command("allocator", "etcd-pod", "keep", "--dir", dir, "--tls", e.path("ids-etcd-server"),
		"--listen", e.net+"9", "--endpoints", strings.Join(endpoints, ","), "--root-tls", e.path("ids-etcd-root")))
	e.Cleanup(offer.Kill)
	for i := range e.pods {
		e.start(i, "restored-1", name, "--snapshot-url", "https://"+e.net+"9:2382")
	}
	e.ready(0, 1, 2)
	after, err := e.client("root", 0).MemberList(e.Context())
	fatal.If(e, err)
	if after.Header.ClusterId == before.Header.ClusterId {
		e.Error("the restored cluster has the ID of the one before: nodes would not notice")
	}
	nodes := e.client("client", 2)
	for key, want := range map[string]int{"kept": 1, "lost": 0} {
		r, err := nodes.Get(e.Context(), "/allocator/default/"+key)
		fatal.If(e, err)
		if len(r.Kvs) != want {
			e.Errorf("%s is there %d times after the restore", key, len(r.Kvs))
		}
	}
	// A restored member whose volume is lost is replaced, not restored again.
	ids := e.members()
	e.pods[2].kill()
	e.lose(2)
	e.start(2, "restored-1", name, "--snapshot-url", "https://"+e.net+"9:2382")
	e.ready(2)
	if got := e.members(); len(got) != 3 || got["ids-etcd-2"] == ids["ids-etcd-2"] {
		e.Errorf("after the loss of a volume the members are %x, before %x", got, ids)
	}
	r, err := http.Get("http://" + e.net + "9:2381/metrics")
	fatal.If(e, err)
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if r.Header.Get("X-Content-Type-Options") != "nosniff" {
		e.Errorf("a browser may guess what the metrics are: %v", r.Header)
	}
	if err != nil || !regexp.MustCompile(`allocator_etcd_snapshot_timestamp_seconds 1\.`).Match(page) || strings.Contains(offer.Log(), "fails") {
		e.Errorf("the keeper of snapshots says\n%s\n%s %v", offer.Log(), page, err)
	}
}

// The chart calls commands that there are, with flags that they have.
func TestEtcdPodFlags(t *testing.T) {
	files, err := filepath.Glob("../../deploy/helm/allocator/templates/*etcd*")
	fatal.If(t, err)
	called := map[string]bool{}
	for _, f := range files {
		var command *cobra.Command
		lines := strings.Split(readFile(t, f), "\n")
		for i, line := range lines {
			word := strings.TrimSpace(line)
			switch {
			case word == "- etcd-pod":
				name := strings.TrimPrefix(strings.TrimSpace(lines[i+1]), "- ")
				called[name] = true
				if command, _, err = newRoot(&cli.App{}).Find([]string{"etcd-pod", name}); err != nil || command.Name() != name {
					t.Fatalf("%s: there is no command etcd-pod %s: %v", f, name, err)
				}
			case command != nil && strings.HasPrefix(word, "env:"), strings.HasPrefix(word, "securityContext:"):
				command = nil
			case command != nil:
				if m := regexp.MustCompile(`--([a-z-]+)=`).FindStringSubmatch(word); m != nil && command.Flags().Lookup(m[1]) == nil {
					t.Errorf("%s:%d: etcd-pod %s has no flag %s", f, i+1, command.Name(), m[1])
				}
			}
		}
	}
	if len(called) != 3 {
		t.Errorf("the chart calls %v: want run, keep and secrets", called)
	}
}

// program runs the program itself, as a process, for as many inputs as there are
// at once; single ones go to allocator.
func program(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command("allocator", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}
