package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

const guide = "../../docs/how-to/use-your-own-etcd.md"

// programs builds what the guide needs: inside the network there is no way to download
// modules.
func programs(t *testing.T, each ...func(context.Context, string) (string, error)) string {
	t.Helper()
	for _, tool := range []string{"ip", "sh", "openssl", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not run: %s is not installed", tool)
		}
	}
	bin := t.TempDir()
	for _, program := range each {
		if _, err := program(t.Context(), bin); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// machine is one of the guide's, as a directory.
type machine struct {
	ip, dir            string
	stopEtcd, stopNode func()
}

// here puts the machine's directories in the place of those that a page names.
func (m *machine) here(text string) string {
	return strings.NewReplacer("/etc/allocator", m.dir+"/etc", "/etc/etcd", m.dir+"/etcd", "/var/lib/etcd", m.dir+"/data", "/var/lib/allocator", m.dir+"/state", "/usr/local/bin", m.dir+"/bin", "/mnt/backup", m.dir+"/backup").Replace(text)
}

// nodeUser is the user of nodes, where root runs the test: what root writes, nodes have to be able to use.
// Others than root are the user of nodes themselves.
const nodeUser = 64321

// rooted reports whether root runs the test. In the namespace that pages.OwnNetwork makes for another user, that
// user alone is mapped, to 0, and can be nobody else.
func rooted() bool {
	ids, _ := os.ReadFile("/proc/self/uid_map") // inside, outside, how many
	f := strings.Fields(string(ids))
	return os.Geteuid() == 0 && len(f) >= 3 && f[2] != "1"
}

// script runs commands of a page at a machine. Etcd's user is left out.
func (m *machine) script(t *testing.T, work, commands string) string {
	t.Helper()
	user, owner := "", ""
	if rooted() {
		user = fmt.Sprintf("setpriv --reuid %d --regid %[1]d --clear-groups ", nodeUser)
		owner = fmt.Sprintf("-o root -g %d ", nodeUser)
	}
	commands = m.here(strings.NewReplacer("sudo -u allocator ", user, "sudo ", "", "-o root -g allocator ", owner,
		"-o root -g etcd ", "", "allocator init ", "allocator init --timeout 1m ").Replace(commands))
	out, _, err := pages.NewShell(t, pages.Config{Dir: work, Env: []string{"IP=" + m.ip, "ALLOCATOR_ETCD_ADDRESS=" + m.ip, "PATH=" + work + "/bin:" + os.Getenv("PATH")}}).Run(commands)
	fatal.If(t, err)
	return out
}

// service starts a program that runs until it is stopped or the test ends.
func service(t *testing.T, log string, env []string, user *syscall.Credential, args ...string) (stop func()) {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	fatal.If(t, err)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: user}
	p := proc.Run(t, cmd)
	stop = sync.OnceFunc(func() {
		// etcd stops in order and then ends itself with the signal it was sent.
		if err := p.Stop(patience); err != nil && !(strings.HasSuffix(args[0], "etcd") && err.Error() == "signal: terminated") {
			t.Errorf("%s: %v", filepath.Base(log), err)
		}
		_ = out.Close()
	})
	t.Cleanup(func() {
		stop()
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("%s:\n…%s", log, text[max(0, len(text)-4000):])
		}
	})
	return stop
}

// environment reads NAME=value lines.
func environment(text, ip string) (out []string) {
	for _, line := range strings.Split(strings.ReplaceAll(text, "$IP", ip), "\n") {
		if strings.Contains(line, "=") {
			out = append(out, line)
		}
	}
	return out
}

// TestGuide follows docs/how-to/use-your-own-etcd.md from the certificates to the last check, on
// three machines that are three addresses, and then the pages about their later life.
// What is left out: systemd, whose unit is taken for its command, and users.
func TestGuide(t *testing.T) {
	tier.Check(t, "builds the release and etcd's programs, and runs three machines")
	t.Parallel() // it waits for windows and eras
	bin, ok := pages.OwnNetwork(t, func() string { return programs(t, build.Allocator, build.Etcd, build.Etcdctl) })
	if !ok {
		return
	}
	page := pages.Open(t, guide)
	work, machines := threeMachines(t, bin)
	// One binary is the server and the tool for snapshots.
	fatal.If(t, os.WriteFile(filepath.Join(bin, "etcdutl"), []byte("#!/bin/sh\nexec "+bin+"/etcd \"$@\"\n"), 0o700))
	host := machine{dir: work}
	certificates, shared, ok := strings.Cut(page.Text(t, "run: once"), "mkdir -p shared")
	if !ok {
		t.Fatal("the guide shares secrets in another way")
	}
	host.script(t, work, certificates)
	for _, m := range machines {
		m.script(t, work, page.Text(t, "run: etcd"))
		m.startEtcd(t, work, readFile(t, filepath.Join(m.dir, "etcd/etcd.env")))
	}
	awaitEtcd(t, work, "")
	host.script(t, work, "mkdir -p shared"+shared)

	for i, m := range machines {
		m.install(t, work, page)
		if i == 0 {
			t.Logf("%s", m.script(t, work, page.Text(t, "run: first")))
		}
		m.startNode(t)
	}
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusOK, "")
	}
	said := machines[1].script(t, work, page.Text(t, "run: check"))
	t.Logf("%s", said)
	for _, want := range []string{
		"3 nodes; 3 of 32 sids held", "node-1", "node-3", "etcd-role        writing outside the prefix is denied", "0 fail",
		"https://10.0.0.2:2379: version", "node-2 at 10.0.0.2:9000 is ready",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the last check does not say %q", want)
		}
	}
	if !regexp.MustCompile(`(?m)^[0-9A-Z]{13}$`).MatchString(said) {
		t.Error("no IDs were drawn")
	}

	c := draw(t, work)
	upgrade(t, work, machines, c)
	restore(t, work, machines, c)
	lose(t, work, machines, c, page)
	c.stop()
}

// copies has a node copy its snapshots elsewhere from its next start on.
func (m *machine) copies(t *testing.T, work, commands string) {
	t.Helper()
	to := m.here("/mnt/backup")
	fatal.If(t, os.Mkdir(to, 0o700))
	if rooted() {
		fatal.If(t, os.Chown(to, nodeUser, nodeUser))
	}
	m.script(t, work, commands)
	m.stopNode()
	m.startNode(t)
	m.awaitReadyz(t, http.StatusOK, "")
	wait.NoError(t, "a copy of a snapshot", func() error {
		if list, err := filepath.Glob(to + "/*-hourly-*.db"); len(list) != 1 {
			return fmt.Errorf("%q, %v", list, err)
		}
		said := m.script(t, work, "allocator doctor --config /etc/allocator/allocator.yaml --ca pki/ca.pem --token-file shared/ops.token || true")
		if !regexp.MustCompile(`ok +etcd-copy`).MatchString(said) {
			return fmt.Errorf("doctor says %s", said)
		}
		return nil
	})
}

// threeMachines are three addresses of this one, with what the guides find on them.
func threeMachines(t *testing.T, bin string) (work string, machines []*machine) {
	t.Helper()
	work = t.TempDir()
	deploy, err := filepath.Abs("../../deploy")
	fatal.If(t, err)
	for _, dir := range []string{work, bin} { // The user of nodes runs programs in them.
		fatal.If(t, os.Chmod(filepath.Dir(dir), 0o755))
	}
	for name, to := range map[string]string{"bin": bin, "deploy": deploy} {
		fatal.If(t, os.Symlink(to, filepath.Join(work, name)))
	}
	for i := range 3 {
		machines = append(machines, newMachine(t, work, fmt.Sprintf("10.0.0.%d", i+1)))
	}
	return work, machines
}

func newMachine(t *testing.T, work, ip string) *machine {
	t.Helper()
	m := &machine{ip: ip, dir: filepath.Join(work, ip)}
	m.script(t, work, "ip address add "+ip+"/32 dev lo; mkdir -p "+m.dir+"/bin")
	return m
}

// install follows the step of a guide that installs a node.
func (m *machine) install(t *testing.T, work string, page pages.Page) {
	t.Helper()
	m.script(t, work, "install bin/allocator /usr/local/bin/allocator\n"+page.Text(t, "run: each"))
	// The file names its files where they are installed.
	file := filepath.Join(m.dir, "etc/allocator.yaml")
	fatal.If(t, os.WriteFile(file, []byte(m.here(readFile(t, file))), 0o600))
}

// TestGuideInside follows docs/how-to/run-on-machines.md: three machines with etcd inside, from
// the certificates to a member that is replaced and a restore.
func TestGuideInside(t *testing.T) {
	tier.Check(t, "builds the release, and runs three machines")
	t.Parallel() // it waits for windows and eras
	bin, ok := pages.OwnNetwork(t, func() string { return programs(t, build.Allocator) })
	if !ok {
		return
	}
	page := pages.Open(t, "../../docs/how-to/run-on-machines.md")
	work, machines := threeMachines(t, bin)
	host := machine{dir: work}
	t.Logf("%s", host.script(t, work, page.Text(t, "run: certs")))
	host.script(t, work, page.Text(t, "run: once"))
	resize := machines[1].ownDisk(t)
	for _, m := range machines {
		m.install(t, work, page)
		m.startNode(t)
	}
	began := time.Now()
	t.Logf("%s", machines[0].script(t, work, page.Text(t, "run: first")))
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusOK, "")
	}
	t.Logf("all were ready %v after the third start", time.Since(began).Round(time.Millisecond))
	said := machines[1].script(t, work, page.Text(t, "run: check"))
	t.Logf("%s", said)
	for _, want := range []string{"3 of 3 voting members answer", "0 fail", "node-2 at 10.0.0.2:9000 is ready"} {
		if !strings.Contains(said, want) {
			t.Errorf("the last check does not say %q", want)
		}
	}
	c := draw(t, work)
	fullDisk(t, work, machines, resize)
	upgrade(t, work, machines, c, "run: restarted")

	// A fourth node is a client.
	client := newMachine(t, work, "10.0.0.4")
	host.script(t, work, strings.Replace(page.Text(t, "run: certs"), "10.0.0.3", "10.0.0.3,"+client.ip, 1))
	client.install(t, work, page)
	client.script(t, work, page.Text(t, "run: client"))
	client.startNode(t)
	client.awaitReadyz(t, http.StatusOK, "")
	client.stopNode()

	// The disk of the third machine is replaced.
	machines[2].stopNode()
	fatal.If(t, os.RemoveAll(filepath.Join(machines[2].dir, "state")))
	machines[2].startNode(t)
	machines[2].awaitReadyz(t, http.StatusOK, "")
	confirmed := strings.Replace(page.Text(t, "run: replace"), "etcd replace", "etcd replace --yes", 1)
	t.Logf("%s", machines[0].script(t, work, confirmed))
	wait.NoError(t, "the new member", func() error {
		said := machines[0].script(t, work, "allocator etcd status --config /etc/allocator/allocator.yaml || true")
		if !strings.Contains(said, "3 of 3 voting members answer") || strings.Contains(said, "learner") {
			return fmt.Errorf("%s", said)
		}
		return nil
	})
	c.await(t, 1000)

	machines[0].copies(t, work, page.Text(t, "run: copy"))
	machines[0].script(t, work, page.Text(t, "run: backup"))
	extended(t, machines)
	for _, m := range machines {
		m.script(t, work, strings.Replace(page.Text(t, "run: restore"), "etcd restore", "etcd restore --yes", 1))
	}
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusServiceUnavailable, "HISTORY_REWOUND")
	}
	drawn := c.ids.Load()
	t.Logf("%s", machines[0].script(t, work, strings.Replace(page.Text(t, "run: recover"), "admin recover", "admin recover --yes", 1)))
	if now := c.ids.Load(); now != drawn {
		t.Errorf("%d IDs were issued on the restored etcd", now-drawn)
	}
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusOK, "")
	}
	c.await(t, 1000)

	// A member is added and removed, and its node goes on as a client, also after a restart.
	fifth := newMachine(t, work, "10.0.0.5")
	host.script(t, work, strings.Replace(page.Text(t, "run: certs"), "10.0.0.3", "10.0.0.3,"+fifth.ip, 1))
	fifth.install(t, work, page)
	file := filepath.Join(fifth.dir, "etc/allocator.yaml")
	joined := strings.Replace(readFile(t, file), "    - 10.0.0.3\n", "    - 10.0.0.3\n    - 10.0.0.5\n", 1)
	fatal.If(t, os.WriteFile(file, []byte(joined), 0o600))
	fifth.startNode(t)
	says := func(commands, want string) {
		wait.NoError(t, commands, func() error {
			if said := machines[0].script(t, work, strings.TrimSpace(commands)+" 2>&1 || true"); !strings.Contains(said, want) {
				return fmt.Errorf("%s", said)
			}
			return nil
		})
	}
	says("allocator etcd status --config /etc/allocator/allocator.yaml", "4 of 4 voting members answer")
	// etcd refuses until all have been connected for some seconds.
	says(strings.Replace(page.Text(t, "run: remove"), "etcd remove", "etcd remove --yes", 1), "is removed")
	fifth.stopNode()
	fifth.script(t, work, page.Text(t, "run: client"))
	fifth.startNode(t)
	fifth.awaitReadyz(t, http.StatusOK, "")
	fifth.stopNode()
	c.stop()

	// Another authority: no member is alone with its certificate at any time.
	host.script(t, work, page.Text(t, "run: authority"))
	restarted := pages.Open(t, "../../docs/how-to/upgrade.md").Text(t, "run: restarted")
	for _, step := range []string{"run: both", "run: pair", "run: alone"} {
		for _, m := range machines {
			m.script(t, work, page.Text(t, step))
			if step != "run: pair" {
				m.stopNode()
				m.startNode(t)
				m.awaitReadyz(t, http.StatusOK, "")
				m.script(t, work, restarted)
			}
		}
	}
	host.script(t, work, "allocator get --addr 10.0.0.1:9000,10.0.0.2:9000,10.0.0.3:9000 --ca pki-new/ca.pem --token-file shared/checkout.token")

	// All have restarted since the restore. Each node tells who restored its member, and an archive has all of them.
	const ops = " --ca pki-new/ca.pem --token-file shared/ops.token"
	for _, m := range machines {
		said := m.script(t, work, "allocator events --since 12h --addr $IP:9000"+ops)
		if want := "restore member " + m.ip + " from backup.db: data-lost"; !strings.Contains(said, want) || strings.Count(said, "  started ") < 2 {
			t.Errorf("events of %s lack %q or earlier starts:\n%s", m.ip, want, said)
		}
	}
	// The lease of a node whose member is removed as it stops may not be revoked: until it ends the node is listed.
	says("allocator status --addr $IP:9000"+ops, "\n3 nodes; ")
	began = time.Now()
	said = machines[0].script(t, work, "allocator debug zip --output all.zip --timeout 1m --config /etc/allocator/allocator.yaml"+ops)
	took, file := time.Since(began), filepath.Join(work, "all.zip")
	info, err := os.Stat(file)
	fatal.If(t, err)
	t.Logf("debug zip took %v and has %d bytes", took, info.Size())
	if !strings.Contains(said, "of 3 of 3 nodes") || info.Size() > 20<<20 {
		t.Errorf("debug zip: %d bytes: %s", info.Size(), said)
	}
	for name, text := range unzip(t, file) {
		if strings.Contains(name, "error") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// ownDisk gives the machine a disk of its own, and returns what changes its size; nil if nobody may mount here.
func (m *machine) ownDisk(t *testing.T) (resize func(bytes uint64)) {
	t.Helper()
	state := filepath.Join(m.dir, "state")
	fatal.If(t, os.MkdirAll(state, 0o700))
	if err := syscall.Mount("none", state, "tmpfs", 0, "size=1g,mode=700"); err != nil {
		t.Logf("not run: a disk that is full: %v", err)
		return nil
	}
	t.Cleanup(func() { _ = syscall.Unmount(state, syscall.MNT_DETACH) })
	return func(bytes uint64) {
		fatal.If(t, syscall.Mount("none", state, "", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", bytes)))
	}
}

// fullDisk fills the disk of the second machine: its member ends, as docs/how-to/the-first-night.md says, and comes
// back by itself when there is room. After a restart the member's database would have 16 MB on its disk already.
func fullDisk(t *testing.T, work string, machines []*machine, resize func(bytes uint64)) {
	t.Helper()
	if resize == nil {
		return
	}
	var disk syscall.Statfs_t
	fatal.If(t, syscall.Statfs(filepath.Join(machines[1].dir, "state"), &disk))
	resize((disk.Blocks - disk.Bfree) * uint64(disk.Bsize))
	pki := filepath.Join(work, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "10.0.0.1.pem"), filepath.Join(pki, "10.0.0.1.key"))
	fatal.If(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(readFile(t, filepath.Join(pki, "ca.pem"))))
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://10.0.0.1:2379"},
		TLS:       &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
		Logger:    zap.NewNop(),
	})
	fatal.If(t, err)
	defer etcd.Close()
	wait.NoError(t, "a write that there is no room for", func() error {
		_, err := etcd.Put(t.Context(), "more-than-there-is-room-for", strings.Repeat("x", 1<<20))
		return err
	})
	for line := range strings.Lines(pages.Open(t, "../../docs/how-to/the-first-night.md").Text(t, "seen: a member ends")) {
		who, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		parts := strings.Split(what, "…")
		for i, p := range parts {
			parts[i] = regexp.QuoteMeta(strings.TrimSpace(p))
		}
		pattern := regexp.MustCompile(strings.Join(parts, ".*"))
		wait.NoError(t, line, func() error {
			seen := readFile(t, filepath.Join(machines[1].dir, "allocator.log"))
			if who != "node-2 logs" {
				seen = machines[0].script(t, work, "allocator status --addr $IP:9000 --ca pki/ca.pem --token-file shared/ops.token")
			}
			if !pattern.MatchString(seen) {
				return fmt.Errorf("%s; want %s", seen, pattern)
			}
			return nil
		})
	}
	resize(1 << 30)
	machines[1].script(t, work, pages.Open(t, "../../docs/how-to/upgrade.md").Text(t, "run: restarted"))
}

// startEtcd starts the machine's member with the settings of a page.
func (m *machine) startEtcd(t *testing.T, work, settings string) {
	t.Helper()
	// On one machine all members call from the same address, which is not in every
	// certificate.
	env := append(environment(m.here(settings), m.ip), "ETCD_PEER_SKIP_CLIENT_SAN_VERIFICATION=true", "ETCD_LOG_LEVEL=error")
	m.stopEtcd = service(t, filepath.Join(m.dir, "etcd.log"), append(os.Environ(), env...), nil,
		filepath.Join(work, "bin/etcd"))
}

// awaitEtcd waits until a member answers; the password is empty before etcd has users.
func awaitEtcd(t *testing.T, work, rootPassword string) {
	t.Helper()
	wait.NoError(t, "etcd", func() error {
		args := []string{"--endpoints", "https://10.0.0.3:2379", "--cacert", filepath.Join(work, "pki/ca.pem")}
		if rootPassword != "" {
			args = append(args, "--user", "root:"+rootPassword)
		}
		out, err := exec.Command(filepath.Join(work, "bin/etcdctl"), append(args, "endpoint", "health")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// startNode starts the machine's node as its unit does.
func (m *machine) startNode(t *testing.T) {
	t.Helper()
	args := strings.Fields(m.here(field(readFile(t, "../../deploy/systemd/allocator.service"), "ExecStart")[0]))
	state, user := filepath.Join(m.dir, "state"), (*syscall.Credential)(nil) // StateDirectory= and User= of the unit
	fatal.If(t, os.MkdirAll(state, 0o700))
	if rooted() {
		user = &syscall.Credential{Uid: nodeUser, Gid: nodeUser}
		fatal.If(t, os.Lchown(state, nodeUser, nodeUser))
	}
	env := append(os.Environ(), environment(readFile(t, filepath.Join(m.dir, "etc/environment")), m.ip)...)
	m.stopNode = service(t, filepath.Join(m.dir, "allocator.log"), env, user, args...)
}

// awaitReadyz waits until the node's readiness has this code and contains a text.
func (m *machine) awaitReadyz(t *testing.T, code int, want string) {
	t.Helper()
	wait.NoError(t, m.ip, func() error {
		r, err := http.Get("http://" + m.ip + ":7947/readyz?verbose")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if body, _ := io.ReadAll(r.Body); r.StatusCode != code || !strings.Contains(string(body), want) {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
}

// extended waits until every node has extended its window, which a backup of before does not know.
func extended(t *testing.T, machines []*machine) {
	t.Helper()
	counted := regexp.MustCompile(`allocator_etcd_call_duration_seconds_count{op="extend"} (\d+)`)
	for _, m := range machines {
		count := func() string {
			r, err := http.Get("http://" + m.ip + ":7947/metrics")
			fatal.If(t, err)
			defer r.Body.Close()
			body, _ := io.ReadAll(r.Body)
			return counted.FindString(string(body))
		}
		before := count()
		wait.Until(t, m.ip+" extends its window", func() bool { now := count(); return now != "" && now != before })
	}
}

// drawing is a client that draws IDs until it is stopped, and fails the test if one
// comes twice.
type drawing struct {
	stop     func()
	ids      atomic.Int64
	failures atomic.Int64
}

func draw(t *testing.T, work string) *drawing {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(readFile(t, filepath.Join(work, "pki/ca.pem")))) {
		t.Fatal("the authority has no certificate")
	}
	c, err := client.New(client.Options{
		Targets: []string{"10.0.0.1:9000", "10.0.0.2:9000", "10.0.0.3:9000"}, TokenFile: filepath.Join(work, "shared/checkout.token"),
		TLS: &tls.Config{RootCAs: pool}, Unordered: true,
	})
	fatal.If(t, err)
	d, ctx := &drawing{}, t.Context()
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		defer c.Close()
		seen := map[flake.ID]bool{}
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			b, err := c.Block(ctx, 20)
			if err != nil {
				d.failures.Add(1)
				continue
			}
			for id := range b.All() {
				if seen[id] {
					history.Violated(t, "I1", "%v came twice", id)
				}
				seen[id] = true
			}
			d.ids.Add(int64(b.Count))
		}
	}()
	d.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(d.stop)
	return d
}

// await waits until the client has drawn so many more.
func (d *drawing) await(t *testing.T, more int64) {
	t.Helper()
	before := d.ids.Load()
	wait.NoError(t, "more IDs", func() error {
		if n := d.ids.Load() - before; n < more {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	t.Logf("%d IDs, each once", d.ids.Load())
}

// upgrade follows docs/how-to/upgrade.md, with further blocks of it after each restart. Clients notice
// nothing.
func upgrade(t *testing.T, work string, machines []*machine, c *drawing, further ...string) {
	t.Helper()
	page := pages.Open(t, "../../docs/how-to/upgrade.md")
	install, wait, ok := strings.Cut(page.Text(t, "run: restart"), "sudo systemctl restart allocator\n")
	if !ok {
		t.Fatal("the page restarts nodes in another way")
	}
	before := c.ids.Load()
	set := readFile(t, filepath.Join(machines[0].dir, "etc/environment"))
	wrong := machines[0].script(t, work, "echo ALLOCATOR_LEASE_WINDOW=20 >> /etc/allocator/environment\n"+install+"echo stopped || echo kept")
	if !strings.Contains(wrong, "lease.window") || !strings.HasSuffix(strings.TrimSpace(wrong), "\nkept") {
		t.Errorf("the page does not stop at a setting that no start takes: %s", wrong)
	}
	fatal.If(t, os.WriteFile(filepath.Join(machines[0].dir, "etc/environment"), []byte(set), 0o644))
	for _, m := range machines {
		m.script(t, work, install+"true")
		m.stopNode()
		m.startNode(t)
		m.script(t, work, wait)
		for _, mark := range further {
			m.script(t, work, page.Text(t, mark))
		}
	}
	if said := machines[0].script(t, work, page.Text(t, "run: drain")); !strings.Contains(said, "given back") {
		t.Errorf("the answer to drain is %q", said)
	}
	machines[0].awaitReadyz(t, http.StatusServiceUnavailable, "DRAINING")
	machines[0].script(t, work, page.Text(t, "run: undrain"))
	machines[0].awaitReadyz(t, http.StatusOK, "")
	if c.ids.Load() == before || c.failures.Load() > 0 {
		t.Errorf("%d IDs were drawn during the upgrade, %d calls failed", c.ids.Load()-before, c.failures.Load())
	}
}

// restore follows docs/how-to/restore-etcd.md from a backup to the last check. Nodes
// refuse from the restore on until the new era, and no ID comes twice.
func restore(t *testing.T, work string, machines []*machine, c *drawing) {
	t.Helper()
	page, host := pages.Open(t, "../../docs/how-to/restore-etcd.md"), machines[0]
	host.script(t, work, pages.Open(t, "../../docs/how-to/use-your-own-etcd.md").Text(t, "run: backup"))
	t.Logf("%s", host.script(t, work, page.Text(t, "run: members")+page.Text(t, "run: nospace")))
	extended(t, machines)

	for _, m := range machines {
		m.stopEtcd()
	}
	if said := host.script(t, work, page.Text(t, "run: windows")); strings.Count(said, "window left") != 3 {
		t.Errorf("while etcd is away the status is %q", said)
	} else {
		t.Logf("%s", said)
	}
	for _, m := range machines {
		m.script(t, work, page.Text(t, "run: restore"))
		m.startEtcd(t, work, readFile(t, filepath.Join(m.dir, "etcd/etcd.env"))+page.Text(t, "file: restored.env"))
	}
	awaitEtcd(t, work, strings.TrimSpace(readFile(t, filepath.Join(work, "shared/etcd-root-password"))))
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusServiceUnavailable, "HISTORY_REWOUND")
	}
	drawn := c.ids.Load()
	if said := host.script(t, work, page.Text(t, "run: refused")); !strings.Contains(said, "HISTORY_REWOUND") {
		t.Errorf("the node says %q", said)
	}
	machines[2].stopNode() // the page forbids it; it must not be a danger
	machines[2].startNode(t)
	machines[2].awaitReadyz(t, http.StatusServiceUnavailable, "HISTORY_REWOUND")
	if now := c.ids.Load(); now != drawn {
		t.Errorf("%d IDs were issued on the restored etcd", now-drawn)
	}

	confirmed := strings.Replace(page.Text(t, "run: recover"), "admin recover", "admin recover --yes", 1)
	t.Logf("%s", host.script(t, work, confirmed))
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusOK, "")
	}
	said := host.script(t, work, page.Text(t, "run: check"))
	t.Logf("%s", said)
	if !strings.Contains(said, "0 fail") || !regexp.MustCompile(`(?m)^[0-9A-Z]{13}$`).MatchString(said) {
		t.Error("the last check fails")
	}
	c.await(t, 1000)
}

// lose follows docs/how-to/restore-etcd.md where there is no backup.
func lose(t *testing.T, work string, machines []*machine, c *drawing, guide pages.Page) {
	t.Helper()
	for _, m := range machines {
		m.stopEtcd()
	}
	for _, m := range machines {
		m.startEtcd(t, work, readFile(t, filepath.Join(m.dir, "etcd/etcd.env"))+"ETCD_DATA_DIR=/var/lib/etcd/allocator-new\n")
	}
	awaitEtcd(t, work, "")
	host := machines[0]
	_, users, ok := strings.Cut(guide.Text(t, "run: once"), "export ETCDCTL_ENDPOINTS")
	if !ok {
		t.Fatal("the guide creates etcd's users in another way")
	}
	host.script(t, work, "export ETCDCTL_ENDPOINTS"+users)
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusServiceUnavailable, "HISTORY_REWOUND")
	}
	drawn := c.ids.Load()
	t.Logf("%s", host.script(t, work, pages.Open(t, "../../docs/how-to/restore-etcd.md").Text(t, "run: again")))
	if now := c.ids.Load(); now != drawn {
		t.Errorf("%d IDs were issued on the empty etcd", now-drawn)
	}
	for _, m := range machines {
		m.stopNode()
		m.startNode(t)
	}
	for _, m := range machines {
		m.awaitReadyz(t, http.StatusOK, "")
	}
	c.await(t, 1000)
}
