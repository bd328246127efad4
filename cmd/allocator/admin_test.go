package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

// keys opens etcd itself, for what nobody should do.
func (d *testCluster) keys() *clientv3.Client {
	d.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{d.etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = c.Close() })
	return c
}

func windowKey(sid int) string { return fmt.Sprintf("/allocator/default/window/%d", sid) }

func (d *testCluster) put(key, value string) {
	d.Helper()
	if _, err := d.keys().Put(d.Context(), key, value); err != nil {
		d.Fatal(err)
	}
}

// beginEra moves the floor of the first era back to a time.
func (d *testCluster) beginEra(floor clock.Millis) {
	d.Helper()
	const key = "/allocator/default/era"
	r, err := d.keys().Get(d.Context(), key)
	if err != nil || len(r.Kvs) != 1 {
		d.Fatal(r, err)
	}
	e, err := lease.Decode[lease.Era](string(r.Kvs[0].Value))
	if err != nil {
		d.Fatal(err)
	}
	e.Floor = floor
	d.put(key, lease.Encode(e))
}

// record returns a sid's window as etcd has it.
func (d *testCluster) record(sid int) lease.Entry[lease.Window] {
	d.Helper()
	r, err := d.keys().Get(d.Context(), windowKey(sid))
	if err != nil {
		d.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return lease.Entry[lease.Window]{}
	}
	return lease.NewEntry[lease.Window](r.Kvs[0].ModRevision, 0, string(r.Kvs[0].Value))
}

func (m *member) sid() int {
	st := m.Node().Stats()
	if !st.Holding {
		return -1
	}
	return int(st.SID)
}

// serves waits until m issues, from a sid or from any (-1).
func (m *member) serves(sid int) {
	m.d.Helper()
	m.awaitReason(0)
	if got := m.sid(); sid >= 0 && got != sid {
		m.d.Fatalf("%s has sid %d, want %d", m.name, got, sid)
	}
	n := m.Node().Stats().Issued
	m.d.await(m.name+" issues", func() bool { return m.Node().Stats().Issued > n+500 })
}

// unique holds all that was issued against I1 and I2.
func (d *testCluster) unique() {
	d.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	h := history.History{Format: flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}, Issues: d.issued}
	for _, v := range h.Check() {
		if v.Claim == "I1" || v.Claim == "I2" {
			d.Error(v)
		}
	}
	d.Logf("%d IDs by %d processes", h.IDs(), processes(d.issued))
}

// says runs a command that must end with code and print want.
func (d *testCluster) says(code int, want string, args ...string) string {
	d.Helper()
	out, got := d.cli(args...)
	if got != code || !strings.Contains(out, want) {
		d.Fatalf("exit code %d, want %d, with %q", got, code, want)
	}
	return out
}

// passed waits until a sid's ceiling has passed, so that whoever prefers the sid
// takes it.
func (d *testCluster) passed(sid int) {
	d.Helper()
	ceil := d.record(sid).Value.Ceil
	d.await("the ceiling passes", func() bool { return deployment.WallNow() > ceil })
}

// A drained node refuses, stays, and its sid is free at once.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	sid := a.sid()
	var out bytes.Buffer
	code := run(t.Context(), []string{"admin", "drain", "--addr", a.Addresses().GRPC}, strings.NewReader(""), &out, &out, nil)
	if code != 0 || !strings.Contains(out.String(), fmt.Sprintf("a is drained: sid %d (term 1) was given back, usable from 20", sid)) {
		t.Fatalf("%d: %s", code, &out)
	}
	if w := d.record(sid).Value; w.State != lease.Released {
		t.Errorf("etcd has %+v", w)
	}
	if got := a.reason(); got != node.Draining {
		t.Errorf("a refuses with %q", got)
	}
	b := d.node("a") // its name: it takes what a had
	b.serves(sid)
	if took := clock.Millis(time.Now().UnixMilli()) - d.record(sid).Value.Base; took > clock.MillisOf(testWindow) {
		t.Errorf("the next holder began %v ago: it waited for the window", took.Duration())
	}
	out.Reset()
	code = run(t.Context(), []string{"admin", "drain", "--format", "json", "--addr", a.Addresses().GRPC}, strings.NewReader(""), &out, &out, nil)
	var again struct {
		SID      int
		Released bool
		Node     string
	}
	if err := json.Unmarshal(out.Bytes(), &again); err != nil || code != 0 || again.SID != sid || !again.Released || again.Node != "a" {
		t.Errorf("a second time: %d, %v: %s", code, err, &out)
	}
	if got := a.reason(); got != node.Draining {
		t.Errorf("a refuses with %q", got)
	}
	out.Reset()
	code = run(t.Context(), []string{"admin", "undrain", "--addr", a.Addresses().GRPC}, strings.NewReader(""), &out, &out, nil)
	if code != 0 || !strings.HasPrefix(out.String(), "a is back in service") {
		t.Errorf("undrain: %d: %s", code, &out)
	}
	a.serves(-1)
	out.Reset()
	code = run(t.Context(), []string{"admin", "undrain", "--format", "json", "--addr", a.Addresses().GRPC}, strings.NewReader(""), &out, &out, nil)
	if code != 0 || !strings.Contains(out.String(), `"was_drained":false`) {
		t.Errorf("undrain again: %d: %s", code, &out)
	}
	for _, args := range [][]string{
		{"admin", "drain", "--addr", "127.0.0.1:1,127.0.0.1:2"}, {"admin", "drain", "--addr", "nowhere"}, {"admin", "drain", "x"},
	} {
		if code := run(t.Context(), args, strings.NewReader(""), &out, &out, nil); code != cli.ExitUsage {
			t.Errorf("%q: %d", args, code)
		}
	}
	if code := run(t.Context(), []string{"admin", "drain", "--timeout", "1s", "--addr", "127.0.0.1:1"}, strings.NewReader(""), &out, &out, nil); code != cli.ExitUnavailable {
		t.Errorf("nobody there: %d", code)
	}
	a.stop()
	b.stop()
	d.unique()
}

// A drain is one state, whoever asks for it: the node refuses, etcd has the sid released to
// its last ID, another call says the same, and an undrain by the same way ends it.
func TestDrainEachWay(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	command := func(name string) func(*member) error {
		return func(m *member) error {
			var out bytes.Buffer
			if code := run(t.Context(), []string{"admin", name, "--addr", m.Addresses().GRPC}, strings.NewReader(""), &out, &out, nil); code != 0 {
				return fmt.Errorf("%d: %s", code, &out)
			}
			return nil
		}
	}
	page := func(name string) func(*member) error {
		return func(m *member) error {
			key := confirmKey.FindStringSubmatch(m.operate("action", name))
			if key == nil {
				return errors.New("no plan to confirm")
			}
			if page := m.operate("confirm", key[1]); !strings.Contains(page, name+" "+m.name+": done.") {
				return errors.New(page)
			}
			return nil
		}
	}
	admin := func(m *member) (pb.AdminServiceClient, func() error) {
		conn, err := grpc.NewClient(m.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		return pb.NewAdminServiceClient(conn), conn.Close
	}
	for way, call := range map[string]struct{ drain, undrain func(*member) error }{
		"command": {command("drain"), command("undrain")},
		"page":    {page("drain"), page("undrain")},
		"grpc": {func(m *member) error {
			a, closed := admin(m)
			_, err := a.Drain(t.Context(), &pb.DrainRequest{})
			return errors.Join(err, closed())
		}, func(m *member) error {
			a, closed := admin(m)
			_, err := a.Undrain(t.Context(), &pb.UndrainRequest{})
			return errors.Join(err, closed())
		}},
	} {
		m := d.node(way)
		m.serves(-1)
		sid, term := m.sid(), m.Node().Stats().Lease.Grant.Term
		if err := call.drain(m); err != nil {
			t.Errorf("%s: %v", way, err)
		}
		st, w := m.Node().Stats(), d.record(sid).Value
		if m.reason() != node.Draining || st.Holding || !st.Lease.Idle || w.State != lease.Released || w.Term != term {
			t.Errorf("%s: refuses with %q, holds %t, and etcd has %+v", way, m.reason(), st.Holding, w)
		}
		a, closed := admin(m)
		again, err := a.Drain(t.Context(), &pb.DrainRequest{})
		if err != nil || !again.GetReleased() || again.GetSid() != int32(sid) || again.GetTerm() != term || clock.Millis(again.GetCeilUnixMs()) != w.Ceil {
			t.Errorf("%s: a call afterwards: %v, %v; etcd has %+v", way, again, err, w)
		}
		_ = closed()
		if err := call.undrain(m); err != nil {
			t.Errorf("%s: %v", way, err)
		}
		m.serves(-1)
		m.stop()
	}
	d.unique()
}

// of confines a node to one sid.
func of(sid int) func(*config.Config) {
	return func(c *config.Config) { c.SIDRange = lease.SIDRange{From: flake.SID(sid), To: flake.SID(sid) + 1} }
}

// A quarantined sid is taken from its holder without a refusal, taken by nobody,
// and comes back.
func TestQuarantineAndRelease(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	sid := a.sid()
	name := fmt.Sprint(sid)
	d.says(cli.ExitInvalid, `is held by "a"`, "admin", "quarantine", name)
	refused := a.Node().Stats().Refused[node.NoSID]
	d.says(cli.ExitOK, "is quarantined: no node acquires it. a loses it", "admin", "quarantine", name, "--force", "--reason", "a test")
	d.await("a has another sid", func() bool { return a.sid() != sid && a.sid() >= 0 })
	a.serves(-1)
	if n := a.Node().Stats().Refused[node.NoSID]; n != refused {
		t.Errorf("a refused %d requests for want of a sid", n-refused)
	}
	d.passed(sid)
	b := d.node("a") // prefers what had its name
	b.serves(-1)
	if b.sid() == sid {
		t.Error("a quarantined sid was taken")
	}
	b.stop()
	d.says(cli.ExitInvalid, "is quarantined already: a test", "admin", "quarantine", name)
	if out := d.says(cli.ExitInvalid, "sid "+name+" was quarantined by an operator: a test", "doctor", "--addr", "127.0.0.1:1"); !strings.Contains(out, "warn     quarantine") {
		t.Error("the doctor does not warn of it")
	}
	d.says(cli.ExitUsage, "give --yes", "admin", "release-sid", name)
	d.says(cli.ExitOK, "is free, with term 2", "admin", "release-sid", name, "--yes")
	c := d.node("c", of(sid))
	c.serves(sid)
	d.says(cli.ExitInvalid, "is held by", "admin", "release-sid", name, "--yes")
	a.stop()
	c.stop()
	d.says(cli.ExitInvalid, "needs no repair", "admin", "release-sid", name, "--yes")
	d.says(cli.ExitUsage, "is not a sid", "admin", "quarantine", "x1")
	d.says(cli.ExitInvalid, "sids 0-31 of 32", "admin", "quarantine", "32")
	d.unique()
}

// TestReservedSIDs: a space begins with sids for generators outside, which no node takes until
// they are given back. Init changes nothing of a space that exists, and says what is missing.
func TestReservedSIDs(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	in := func(args ...string) []string { return append(args, "--space", "beside") }
	d.says(cli.ExitInvalid, "--reserve 30-32 is not within the sids of the space, 0-31 of 32", in("init", "--fresh", "--reserve", "30-32")...)
	d.says(cli.ExitUsage, "write sids such as", in("init", "--fresh", "--reserve", "1,,2")...)
	d.says(cli.ExitOK, "sids 0-29,31 are reserved: no node takes them", in("init", "--fresh", "--reserve", "31,0-29")...)
	d.says(cli.ExitOK, "already initialized", in("init", "--reserve", "5-7")...)
	d.says(cli.ExitInvalid, "its sids 30 are not reserved: nodes may have issued IDs with them", in("init", "--reserve", "28-31")...)

	beside := func(c *config.Config) { c.Space = "beside" }
	a := d.node("a", beside)
	a.serves(30)
	b := d.node("b", beside)
	b.awaitReason(node.NoSID)
	if says := b.Node().Stats().Lease.Problem; !strings.Contains(says, "1 of 32 are held by a, 0 quarantined, 31 reserved") {
		t.Errorf("b says %q", says)
	}
	d.says(cli.ExitOK, "Given to the cluster: sids 3-4.", in("admin", "unreserve", "3-4", "--yes")...)
	b.serves(-1)
	if sid := b.sid(); sid != 3 && sid != 4 {
		t.Errorf("b has sid %d", sid)
	}
	d.says(cli.ExitInvalid, "is held by", in("admin", "reserve", "3-4")...)

	d.put("/allocator/beside/window/7", "damaged")
	d.says(cli.ExitInvalid, "release-sid 7\" first", in("admin", "unreserve", "7", "--yes")...)
	d.says(cli.ExitOK, "sid 7 is reserved again", in("admin", "release-sid", "7", "--yes")...)
	d.says(cli.ExitOK, "Given to the cluster: sids 7.", in("admin", "unreserve", "7", "--yes")...)
	d.unique()
}

// The record of a live holder is damaged: the node moves on, and the repair's
// bound lies above all that it was granted.
func TestReleaseOfACorruptRecord(t *testing.T) {
	tier.Check(t, "waits for the floor of an era")
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	sid := a.sid()
	d.put(windowKey(sid), strings.Replace(d.record(sid).Raw, `"node":"a"`, `"node":"x"`, 1))
	granted := a.granted()
	d.await("a has another sid", func() bool { return a.sid() != sid && a.sid() >= 0 })
	a.serves(-1)
	d.says(cli.ExitInvalid, "unreadable", "admin", "quarantine", fmt.Sprint(sid))
	d.says(cli.ExitInvalid, "\"allocator admin release-sid "+fmt.Sprint(sid)+"\" repairs it", "doctor")
	d.says(cli.ExitOK, "is free, with term 2", "admin", "release-sid", fmt.Sprint(sid), "--yes")
	w := d.record(sid)
	if w.Err != nil || w.Value.Term != 2 || w.Value.Ceil <= granted {
		t.Errorf("got %+v, and %d was granted", w, granted)
	}
	d.passed(sid)
	b := d.node("c", of(sid))
	b.serves(sid)
	a.stop()
	b.stop()
	d.unique()
}

// A bad clock has set a ceiling ten years ahead.
//
// Incident T21 (a clock of the future), docs/INCIDENTS.md.
func TestReleaseOfAPoisonedRecord(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	sid := a.sid()
	a.stop()
	w := d.record(sid).Value
	above := w.Ceil
	w.Ceil += 10 * 365 * 24 * 3600 * 1000
	w.Nonce = "poison"
	d.put(windowKey(sid), lease.Encode(w))
	b := d.node("a")
	b.serves(-1)
	if b.sid() == sid {
		t.Error("a poisoned sid was taken")
	}
	d.says(cli.ExitInvalid, "fail     ceilings", "doctor")
	d.says(cli.ExitInvalid, "--above TIME", "admin", "release-sid", fmt.Sprint(sid), "--yes")
	// Nor does a recovery follow it into the future.
	d.says(cli.ExitInvalid, "ceilings are far in the future", "admin", "recover", "--yes")
	d.says(cli.ExitOK, "is free", "admin", "release-sid", fmt.Sprint(sid), "--yes", "--above", repair.At(above))
	if got := d.record(sid).Value; got.Ceil != above || got.Term != w.Term+1 {
		t.Errorf("got %+v, want ceiling %d", got, above)
	}
	c := d.node("c", of(sid))
	c.serves(sid)
	b.stop()
	c.stop()
	d.unique()
}

// A deleted window: the ledger shows that the sid was used.
//
// Incident T34 (somebody deleted the record of what was used), docs/INCIDENTS.md.
func TestReleaseOfADeletedRecord(t *testing.T) {
	tier.Check(t, "waits for the floor of an era")
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	sid, granted := a.sid(), a.granted()
	a.stop()
	if _, err := d.keys().Delete(t.Context(), windowKey(sid)); err != nil {
		t.Fatal(err)
	}
	b := d.node("b") // tries it, and leaves it
	b.serves(-1)
	if b.sid() == sid {
		t.Error("a sid without its record was taken")
	}
	d.says(cli.ExitInvalid, "has ledger lines but no window record", "admin", "quarantine", fmt.Sprint(sid))
	d.says(cli.ExitInvalid, "was never used", "admin", "release-sid", "31", "--yes")
	d.says(cli.ExitOK, "is free, with term 2", "admin", "release-sid", fmt.Sprint(sid), "--yes")
	if got := d.record(sid).Value; got.Ceil <= granted {
		t.Errorf("ceiling %d, and %d was granted", got.Ceil, granted)
	}
	d.passed(sid)
	c := d.node("c", of(sid))
	c.serves(sid)
	b.stop()
	c.stop()
	d.unique()
}
