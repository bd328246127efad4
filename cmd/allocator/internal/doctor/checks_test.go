package doctor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// at is when the facts below were gathered.
const at clock.Millis = 1_800_000_000_000

func record[T any](v T) lease.Entry[T] { return lease.NewEntry[T](1, 1, lease.Encode(v)) }

// well is a deployment of one node where all is well.
func well() facts {
	space := lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}
	return facts{
		hint: remote.Dialer{}.Hint, free: -1,
		want: space, space: "default", slack: 30_750, maxSkew: 250 * time.Millisecond, extend: 5 * time.Second,
		members:   []member.Status{{Endpoint: "http://e1:2379", Took: time.Millisecond, Cluster: 0xc1, Version: "3.6.5", Leader: true, Revision: 9, Size: 1 << 20, Quota: 2 << 30}},
		compacted: true, role: etcdstore.Role{Auth: true}, now: at, kernel: clock.Kernel{Known: true, Synchronized: true},
		gossip: map[string]error{"10.0.0.1:7946": nil},
		view: lease.View{
			Cluster: 0xc1, Revision: 9, Config: record(space), Era: record(lease.Era{Number: 1, Floor: at - 60_000, Cluster: 0xc1}),
			SIDs: map[flake.SID]lease.SIDRecords{3: {Holder: record(lease.Holder{Instance: "i1", Node: "n1"}), Window: record(granted())}},
		},
		registered: []lease.Registration{{Instance: "i1", Node: "n1", GRPC: "10.0.0.1:9000"}},
		nodes:      []deployment.NodeReport{{Addr: "10.0.0.1:9000", Name: "n1", Took: 2 * time.Millisecond, At: at.Time(), Cluster: answer(0)}},
	}
}

func granted() lease.Window {
	return lease.Window{Era: 1, Term: 4, Instance: "i1", Node: "n1", Nonce: "x", Base: at - 2000, Ceil: at + 28_000, State: lease.Active, Wall: at - 2000}
}

// answer is what a ready node says whose clock is off by that much.
func answer(off clock.Millis) status.Cluster {
	c := status.Cluster{
		Pool: "p",
		Read: int64(at + off),
		Nodes: []status.Node{{
			Name: "n1", Instance: "i1", SID: 3, Clock: &status.PeerClock{Verdict: "open", Fresh: true, Self: true},
		}},
		Self: status.Self{
			Name: "n1", Instance: "i1", Ready: true, SID: 3, Now: int64(at+off) + 1, Ceil: int64(at+off) + 28_001, Window: 30_000,
		},
	}
	c.Judge()
	return c
}

// sees changes what the first node that was asked answers.
func (f *facts) sees(change func(*status.Cluster)) {
	c := &f.nodes[0].Cluster
	change(c)
	c.Judge()
}

func (f *facts) sid(n flake.SID, change func(*lease.SIDRecords, *lease.Window)) {
	s, w := lease.SIDRecords{}, granted()
	w.State = lease.Released
	s.Window = record(w)
	change(&s, &w)
	if s.Window.Exists() && s.Window.Err == nil {
		s.Window = record(w)
	}
	f.view.SIDs[n] = s
}

// second adds a node that answers.
func (f *facts) second(addr, instance, name string) {
	f.registered = append(f.registered, lease.Registration{Instance: lease.Instance(instance), Node: name, GRPC: addr})
	c := answer(0)
	c.Self.Name, c.Self.Instance = name, instance
	c.Nodes[0].Name, c.Nodes[0].Instance = name, instance
	f.nodes = append(f.nodes, deployment.NodeReport{Addr: addr, Name: name, Took: time.Millisecond, At: at.Time(), Cluster: c})
}

// versions gives two nodes theirs.
func (f *facts) versions(first, second string) {
	f.second("10.0.0.2:9000", "i2", "n2")
	f.nodes[0].Cluster.Self.Version, f.nodes[1].Cluster.Self.Version = first, second
}

// member adds one with this version.
func (f *facts) member(version string) {
	m := f.members[0]
	m.Endpoint, m.Version = "http://e2:2379", version
	f.members = append(f.members, m)
}

// vanished is the record of a node that is gone and has released nothing.
func (f *facts) vanished(wrote clock.Millis) {
	f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) { w.State, w.Node, w.Wall = lease.Active, "n2", wrote })
}

// inside makes the member one of etcd inside: with a disk of that p99, and a snapshot each due, of which
// the latest is so old; 0: there is none.
func (f *facts) inside(p99, due, old time.Duration) {
	f.own, f.mutual, f.due = true, true, due
	f.syncs = map[string]time.Duration{"e1": p99}
	if old > 0 {
		f.snapshots = []meet.Snapshot{{At: at.Time().Add(-old)}, {At: at.Time().Add(-old - due)}}
	}
}

const year = 365 * 24 * time.Hour

// certificate adds one that lasts for so long, and ends in left.
func (f *facts) certificate(where string, lasts, left time.Duration) {
	end := at.Time().Add(left)
	f.certificates = append(f.certificates, certificate{where, &x509.Certificate{NotBefore: end.Add(-lasts), NotAfter: end}})
}

func TestExamine(t *testing.T) {
	away := errors.New("away")
	for _, tc := range []struct {
		name   string
		change func(*facts)
		want   []string // every line that is not ok: state, check, a part of the detail, and of the advice
	}{
		{"all is well", func(*facts) {}, nil},
		{"one endpoint away", func(f *facts) {
			f.members = append(f.members, member.Status{Endpoint: "http://e2:2379", Err: away})
		}, []string{"fail etcd-endpoint | http://e2:2379: away | Check that etcd runs there"}},
		{"all endpoints away", func(f *facts) { f.members[0].Err = away },
			[]string{"fail etcd-endpoint | away |", "fail etcd | no endpoint answers | do not restart"}},
		{"all endpoints away, and nodes", func(f *facts) { f.members[0].Err, f.nodes, f.registered, f.view = away, nil, nil, lease.View{} },
			[]string{"fail etcd-endpoint | away |", "fail etcd | no endpoint answers |", "skipped nodes | who is registered is not known | --addr", "skipped access | no node |", "skipped clock | no node to compare |"}},
		{"slow", func(f *facts) { f.members[0].Took = 400 * time.Millisecond }, []string{"warn etcd-endpoint | answered in 400ms | Check etcd's disk"}},
		{"two clusters", func(f *facts) {
			m := f.members[0]
			m.Endpoint, m.Cluster = "http://e2:2379", 0xc2
			f.members = append(f.members, m)
		}, []string{"fail etcd-cluster | 2 different clusters: c1, c2 | issue the same IDs"}},
		{"old etcd", func(f *facts) { f.members[0].Version = "3.6.4" }, []string{"fail etcd-version | e1:2379 runs 3.6.4 | Upgrade"}},
		{"members of two patches", func(f *facts) { f.member("3.6.10") },
			[]string{"warn etcd-version | members of 3.6.5 and of 3.6.10 | Finish the upgrade"}},
		{"members of neighboring versions", func(f *facts) { f.member("3.7.0") }, []string{"warn etcd-version | of 3.6.5 and of 3.7.0 |"}},
		{"members too far apart", func(f *facts) { f.member("3.10.1") }, []string{"fail etcd-version | of 3.6.5 and of 3.10.1 |"}},
		{"another member that does not answer", func(f *facts) { f.member(""); f.members[1].Err = away }, []string{"fail etcd-endpoint | away |"}},
		{"no leader", func(f *facts) { f.members[0].Leader = false }, []string{"fail etcd-leader | knows no leader | majority"}},
		{"NOSPACE", func(f *facts) { f.noSpace = true }, []string{"fail etcd-space | NOSPACE | Run \"allocator etcd defragment"}},
		{"nearly full", func(f *facts) { f.members[0].Size = 1700 << 20 }, []string{"warn etcd-space | uses 1700 of 2048 MiB | auto-compaction is on, and run"}},
		{"alarms are not for us", func(f *facts) { f.noSpaceErr = away }, []string{"skipped etcd-space | cannot be read |"}},
		{"a new etcd", func(f *facts) { f.compacted = false }, []string{"skipped etcd-compaction | too early |"}},
		{"no compaction", func(f *facts) { f.compacted, f.members[0].Revision = false, 50_001 },
			[]string{"warn etcd-compaction | revision 1 of 50001 | --auto-compaction-mode=periodic"}},
		{"compaction unknown", func(f *facts) { f.compactErr = away }, []string{"skipped etcd-compaction | away |"}},
		{"a learner", func(f *facts) { f.members[0].Learner = true }, []string{"warn etcd-lag | http://e1:2379 has no vote yet | caught up"}},
		{"behind", func(f *facts) { f.members[0].Lag = farBehind + 1 }, []string{"warn etcd-lag | http://e1:2379 is 10001 entries behind | disk and network"}},
		{"a little behind", func(f *facts) { f.members[0].Lag = farBehind }, nil},
		{"slow disk", func(f *facts) { f.inside(slowDisk+time.Millisecond, 0, 0) }, []string{"warn etcd-disk | http://e1:2379: one in a hundred writes takes 101ms | faster disk"}},
		{"a disk that is just fast enough", func(f *facts) { f.inside(slowDisk, 0, 0) }, nil},
		{"a slow disk of an etcd that is not inside", func(f *facts) {
			f.inside(time.Second, 0, 0)
			f.own = false
		}, nil},
		{"no snapshot", func(f *facts) { f.inside(0, time.Hour, 0) }, []string{"warn etcd-snapshot | has no snapshot | log of this machine's node"}},
		{"an old snapshot", func(f *facts) { f.inside(0, time.Hour, lateSnapshot*time.Hour+time.Minute) },
			[]string{"warn etcd-snapshot | is 3h1m0s old | is the disk full"}},
		{"a snapshot that is just late enough", func(f *facts) { f.inside(0, time.Hour, lateSnapshot*time.Hour) }, nil},
		{"no copy", func(f *facts) { f.inside(0, time.Hour, time.Minute); f.copies = true },
			[]string{"warn etcd-copy | has copied no snapshot of this machine yet | log of this machine's node"}},
		{"an old copy", func(f *facts) {
			f.inside(0, time.Hour, time.Minute)
			f.copies, f.copied = true, at.Time().Add(-lateSnapshot*time.Hour-time.Minute)
		}, []string{"warn etcd-copy | is of 3h1m0s ago | end with 0"}},
		{"a copy", func(f *facts) {
			f.inside(0, time.Hour, time.Minute)
			f.copies, f.copied = true, at.Time().Add(-time.Minute)
		}, nil},
		{"neighboring versions", func(f *facts) { f.versions("v0.9.4", "v0.10.0-rc.1") }, nil},
		{"versions too far apart", func(f *facts) { f.versions("v1.11.0", "v1.9.4") },
			[]string{"fail versions | nodes of v1.9.4 and of v1.11.0 | Upgrade the older ones"}},
		{"another major version", func(f *facts) { f.versions("v2.0.0", "v1.9.4") }, []string{"fail versions | of v1.9.4 and of v2.0.0 |"}},
		{"a build of the source", func(f *facts) { f.versions("v0.0.0-20261127", "v1.9.4") }, nil},
		{"settings that differ", func(f *facts) {
			f.versions("v1.0.0", "v1.0.0")
			f.nodes[0].Cluster.Expected = 2
			c := &f.nodes[1].Cluster
			c.WorkerSIDs, c.Expected, c.Self.Window, c.Self.MaxLead = "24-31", 3, 20_000, 500
		}, []string{"warn settings | cluster.expect differs: 2 at n1 at 10.0.0.1:9000; 3 at n2 at 10.0.0.2:9000 | on all nodes",
			"warn settings | issue.max-lead differs: 0s at n1 at 10.0.0.1:9000; 500ms at n2 at 10.0.0.2:9000 | on all nodes",
			"warn settings | lease.window differs: 20s at n2 at 10.0.0.2:9000; 30s at n1 |", "warn settings | worker.sid-range differs: 24-31 at n2 at 10.0.0.2:9000; none at n1 |"}},
		{"limits of clocks that differ", func(f *facts) {
			f.versions("v1.0.0", "v1.0.0")
			f.nodes[0].Cluster.Self.Clock, f.nodes[1].Cluster.Self.Clock = &status.Clock{Limit: 250_000}, &status.Clock{Limit: 1_000_000}
		}, []string{"warn settings | issue.max-skew differs: 1s at n2 at 10.0.0.2:9000; 250ms at n1 |"}},
		{"room", func(f *facts) { f.inside(0, 0, 0); f.free = inside.MinRoom }, nil},
		{"a full disk", func(f *facts) { f.inside(0, 0, 0); f.free = inside.MinRoom - 1 },
			[]string{"fail etcd-room | 383 MiB are free on the disk of this machine's member, which needs 384 | Make room"}},
		{"an etcd that is open to others", func(f *facts) { f.inside(0, 0, 0); f.open, f.openDo = "others may write", "Close it" },
			[]string{"warn etcd-role | others may write | Close it"}},
		{"a member on a socket", func(f *facts) { f.own, f.socket, f.role = true, true, etcdstore.Role{} }, nil},
		{"a certificate for long", func(f *facts) { f.certificate("tls.cert (a.pem)", year, 31*24*time.Hour) }, nil},
		{"a certificate for a day", func(f *facts) { f.certificate("tls.cert (a.pem)", 24*time.Hour, 3*time.Hour) }, nil},
		{"a certificate that ends", func(f *facts) {
			f.certificate("tls.cert (a.pem)", year, 29*24*time.Hour)
			f.certificate("n1 at 10.0.0.1:9000", year, -time.Hour)
		}, []string{"fail certificate | tls.cert (a.pem) ends in 29 days | Renew it", "fail certificate | n1 at 10.0.0.1:9000 ended 1h0m0s ago | Renew it"}},
		{"no authentication", func(f *facts) { f.role = etcdstore.Role{Outside: true} }, []string{"warn etcd-role | does not authenticate | Turn authentication on"}},
		{"a role too large", func(f *facts) { f.role.Outside = true }, []string{"fail etcd-role | may write outside | and nothing else"}},
		{"no role", func(f *facts) { f.roleErr = away }, []string{"fail etcd-role | away |"}},
		{"unreadable", func(f *facts) { f.loadErr = away }, []string{"fail space | cannot be read: away |"}},
		{"not initialized", func(f *facts) { f.view.Config = lease.Entry[lease.Space]{} }, []string{`fail space | "default" is not initialized | allocator init`}},
		{"corrupt config", func(f *facts) { f.view.Config = lease.NewEntry[lease.Space](1, 0, "x") }, []string{"fail space | unreadable | backup"}},
		{"another layout", func(f *facts) { f.want.Layout = flake.Fleet },
			[]string{"fail space | it has layout scalable and epoch 2024-01-01T00:00:00Z, and layout fleet and epoch | the space's values"}},
		{"another epoch", func(f *facts) { f.want.Epoch++ }, []string{"fail space | are configured here |"}},
		{"a range outside the space", func(f *facts) { f.sids = lease.SIDRange{From: 30, To: 40} },
			[]string{"fail space | sid-range 30-39 is not within the sids of the space, 0-31 of 32 | Set sid-range"}},
		{"a sid of another region", func(f *facts) {
			f.want.Part = lease.SIDRange{From: 0, To: 4}
			f.view.Config = record(f.want)
			f.sid(4, func(*lease.SIDRecords, *lease.Window) {})
		}, []string{"fail records | sid 4 has records, and the space has the sids 0-3 of 32 | other regions"}},
		{"a dead node whose lease lives on", func(f *facts) {
			f.sid(4, func(s *lease.SIDRecords, w *lease.Window) {
				w.State, w.Base, w.Ceil, w.Node = lease.Active, at-90_000, at-60_000, "n9"
				s.Holder = record(lease.Holder{Instance: w.Instance, Node: "n9"})
			})
		}, []string{`warn unreleased | "n9" holds sid 4, and its window ended 1m0s ago | "allocator admin quarantine 4 --force"`}},
		{"no era", func(f *facts) { f.view.Era = lease.Entry[lease.Era]{} }, []string{"fail era | missing | admin recover"}},
		{"restored", func(f *facts) { f.view.Cluster = 0xc2 }, []string{"fail era | cluster is c2, and era 1 began on c1 | admin recover"}},
		{"recovered just now", func(f *facts) { f.view.Era = record(lease.Era{Number: 2, Floor: at + 9000, Cluster: 0xc1}) },
			[]string{"warn era | era 2 begins in 9s | Wait"}},
		{"an era two hours ahead", func(f *facts) {
			f.view.Era = record(lease.Era{Number: 1, Floor: at + 2*3_600_000, Cluster: 0xc1})
		}, []string{"fail era | in 2h0m0s | admin recover --dry-run"}},
		{"initialized under a clock 60 days ahead", func(f *facts) {
			f.view.Era = record(lease.Era{Number: 1, Floor: at + 60*24*3_600_000, Cluster: 0xc1})
		}, []string{"fail era | era 1 begins at 2027-03-16T08:00:00Z, in 60 days | admin recover --dry-run"}},
		{"a layout that ends in seven months", func(f *facts) {
			f.want.Epoch = at - clock.Millis(flake.Scalable.End()) + 210*24*3_600_000
			f.view.Config = record(f.want)
		}, []string{"warn space | IDs of layout scalable end at 2027-08-13T07:59:59Z, in 209 days | a later epoch"}},
		{"the ceiling of a live holder whose clock was ahead", func(f *facts) {
			f.sid(3, func(s *lease.SIDRecords, w *lease.Window) {
				s.Holder = record(lease.Holder{Instance: "i1", Node: "n1"})
				w.State, w.Ceil = lease.Active, at+60*24*3_600_000
			})
		}, []string{`fail ceilings | sid 3 is 2027-03-16T08:00:00.000Z, 60 days ahead of this clock; "n1" holds it | restart n1: it acquires`}},
		{"a corrupt window", func(f *facts) {
			f.sid(5, func(s *lease.SIDRecords, _ *lease.Window) { s.Window = lease.NewEntry[lease.Window](1, 0, "a1 x") })
		}, []string{"fail records | window of sid 5 is unreadable | release-sid 5"}},
		{"a corrupt holder", func(f *facts) {
			f.sid(5, func(s *lease.SIDRecords, _ *lease.Window) { s.Holder = lease.NewEntry[lease.Holder](1, 1, "a1 x") })
		}, []string{"fail records | holder of sid 5 is unreadable |"}},
		{"a holder alone", func(f *facts) {
			f.sid(5, func(s *lease.SIDRecords, _ *lease.Window) {
				s.Holder, s.Window = record(lease.Holder{Instance: "i"}), lease.Entry[lease.Window]{}
			})
		}, []string{"fail records | sid 5 has a holder and no window |"}},
		{"a later era", func(f *facts) { f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) { w.Era = 2 }) }, []string{"fail records | sid 5 is of era 2 |"}},
		{"quarantined", func(f *facts) {
			f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) {
				w.State, w.By, w.Reason = lease.Quarantined, "ann@ops-1", "disk"
			})
		}, []string{"warn quarantine | sid 5: ann@ops-1 quarantined it: disk | release-sid 5"}},
		{"released, and not usable yet", func(f *facts) {
			f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) {
				w.Node, w.By, w.Ceil = lease.Operator, "ann@ops-1", at+7000
			})
		}, []string{"warn quarantine | sid 5: ann@ops-1 released it; usable at 20 | Wait"}},
		{"released, and usable", func(f *facts) {
			f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) { w.Node, w.Ceil = lease.Operator, at })
		}, nil},
		{"poison", func(f *facts) {
			f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) { w.Ceil += 10 * 365 * 24 * 3600 * 1000 })
		},
			[]string{"fail ceilings | sid 5 is 2037 | Is this machine's clock right"}},
		{"nobody", func(f *facts) { f.nodes, f.registered = nil, nil }, []string{"warn nodes | no node is registered | allocator serve", "skipped access | no node |"}},
		{"no address", func(f *facts) { f.registered[0].GRPC = "" }, []string{"skipped node | n1 has no gRPC listener |"}},
		{"a node with TLS", func(f *facts) {
			f.nodes[0].Cluster, f.nodes[0].Err = status.Cluster{}, errors.New("error reading server preface: EOF")
		}, []string{"fail node | n1 at 10.0.0.1:9000 does not answer: error reading server preface: EOF | give --ca"}},
		{"a node away", func(f *facts) { f.nodes[0].Cluster, f.nodes[0].Err = status.Cluster{}, away },
			[]string{"fail node | n1 at 10.0.0.1:9000 does not answer: away | advertise.grpc is reachable"}},
		{"two processes of one name", func(f *facts) { f.second("10.0.0.2:9000", "i2", "n1") }, []string{"fail name | 2 processes have the name n1: at 10.0.0.1:9000, 10.0.0.2:9000 | node.name"}},
		{"one of them cannot be asked", func(f *facts) { f.registered = append(f.registered, lease.Registration{Instance: "i2", Node: "n1"}) },
			[]string{"skipped node | n1 has no gRPC |", "fail name | 2 processes have the name n1: at 10.0.0.1:9000, without a gRPC listener |"}},
		{"killed and started again", func(f *facts) {
			f.registered = append(f.registered, lease.Registration{Instance: "i0", Node: "n1", GRPC: "10.0.0.1:9000"})
		},
			[]string{"warn name | 2 registrations have the name n1, and 1 process answers | run doctor again"}},
		{"as many as expected", func(f *facts) { f.expect = 1 }, nil},
		{"fewer than expected", func(f *facts) { f.expect = 3 }, []string{"fail node-count | 1 node, and 3 are expected | status"}},
		{"one that is away counts as missing", func(f *facts) {
			f.expect = 1
			f.nodes[0].Cluster, f.nodes[0].Err = status.Cluster{}, away
		}, []string{"fail node | does not answer |", "fail node-count | 0 nodes, and 1 is expected |"}},
		{"more than expected", func(f *facts) {
			f.expect = 1
			f.second("10.0.0.2:9000", "i2", "n2")
		}, []string{"warn node-count | 2 nodes, and 1 is expected |"}},
		{"a node that extends no window", func(f *facts) { f.sees(func(c *status.Cluster) { c.Self.Ceil -= 14_000 }) }, []string{"warn node | n1 at 10.0.0.1:9000 is ready, with sid 3, but has 14.0s of its window left | reach etcd"}},
		{"vanished", func(f *facts) { f.vanished(at - 21_000) }, []string{"warn unreleased | n2 has not released sid 5: it last wrote 21s ago | paused"}},
		{"vanished, and replaced by another", func(f *facts) { f.expect = 1; f.vanished(at - 21_000) }, nil},
		{"vanished long ago", func(f *facts) { f.vanished(at - 2*3600*1000) }, nil},
		{"killed, and back", func(f *facts) {
			f.vanished(at - 21_000)
			f.second("10.0.0.2:9000", "i2", "n2")
		}, nil},
		{"a worker that was killed", func(f *facts) {
			f.vanished(at - 21_000)
			f.sid(5, func(_ *lease.SIDRecords, w *lease.Window) { w.Worker = true })
		}, nil},
		{"another space", func(f *facts) { f.nodes[0].Cluster.Pool = "q" }, []string{"fail node | of another space: pool q |"}},
		{"not ready", func(f *facts) {
			f.sees(func(c *status.Cluster) {
				c.Self.Ready, c.Self.Refusing, c.Self.Message = false, node.NoSID, "none is free"
			})
		}, []string{"warn node | would refuse: NO_SID: none is free | docs/reference/refusals.md, and see docs/how-to/repair-sids.md#the-pool-is-exhausted"}},
		{"drained", func(f *facts) {
			f.sees(func(c *status.Cluster) {
				c.Self.Ready, c.Self.Refusing, c.Self.Message = false, node.Draining, "drained"
			})
		}, []string{"warn node | would refuse: DRAINING: drained | docs/how-to/upgrade.md"}},
		{"a node that another one does not hear", func(f *facts) {
			f.second("10.0.0.2:9000", "i2", "n2")
			f.sees(func(c *status.Cluster) {
				c.Nodes = append(c.Nodes, status.Node{Name: "n2", Instance: "i2", SID: 4, Clock: &status.PeerClock{}})
			})
		}, []string{"warn cluster | n1 at 10.0.0.1:9000 sees: No reply from n2 | docs/how-to/repair-clocks.md#peers-do-not-answer"}},
		{"we are behind", func(f *facts) { f.nodes[0].Cluster = answer(300) }, []string{"fail clock | at least 299ms behind the one of n1 | NTP"}},
		{"we are ahead", func(f *facts) { f.nodes[0].Cluster = answer(-300) }, []string{"fail clock | at least 298ms ahead |"}},
		{"just within", func(f *facts) { f.nodes[0].Cluster = answer(250) }, nil},
		{"a slow answer tells less", func(f *facts) { f.nodes[0].Cluster, f.nodes[0].Took = answer(300), time.Second }, nil},
		{"a record of the future", func(f *facts) { f.now -= 2500 }, []string{"fail clock | sid 3 wrote its record 500ms in the future |"}},
		{"an old record", func(f *facts) { f.now += 14_000 }, []string{"warn clock | 16s old | cannot write to etcd"}},
		{"no node", func(f *facts) { f.nodes, f.view.SIDs = nil, nil }, []string{"warn nodes | |", "skipped access | no node |", "skipped clock | no node to compare |"}},
		{"no NTP", func(f *facts) { f.kernel.Synchronized = false }, []string{"warn clock-kernel | not synchronized | chrony"}},
		{"no kernel", func(f *facts) { f.kernel.Known = false }, []string{"skipped clock-kernel | does not report |"}},
		{"no gossip", func(f *facts) { f.gossip = nil }, []string{"skipped gossip | no node has registered |"}},
		{"gossip blocked", func(f *facts) { f.gossip["10.0.0.1:7946"] = away }, []string{"fail gossip | 10.0.0.1:7946 cannot be reached: away | TCP and UDP"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := well()
			tc.change(&f)
			var got report.Report
			for _, c := range examine(f) {
				if c.State != report.OK {
					got = append(got, c)
				} else if c.Do != "" {
					t.Errorf("%+v is well and has advice", c)
				} else if s := f.view.SIDs[5]; c.Name == "quarantine" && s.Distrust(f.view.Era.Value, at+f.slack) != "" {
					t.Errorf("%+v, and nodes do not use sid 5", c)
				}
			}
			if len(got) != len(tc.want) {
				t.Fatalf("got %+v, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				part := strings.SplitN(want, " | ", 2)
				detail, do, _ := strings.Cut(part[1], "|")
				if c := got[i]; string(c.State)+" "+c.Name != part[0] || !strings.Contains(c.Detail, strings.TrimSpace(detail)) || !strings.Contains(c.Do, strings.TrimSpace(do)) {
					t.Errorf("got %+v, want %q", c, want)
				}
				if c := got[i]; (c.State == report.Fail || c.State == report.Warn) && c.Do == "" {
					t.Errorf("%+v says nothing about what to do", c)
				}
			}
		})
	}
}

// TestWorkersAreNamed: doctor names the workers that hold sids, a few of them.
func TestWorkersAreNamed(t *testing.T) {
	f := well()
	for sid := range flake.SID(20) {
		f.sid(10+sid, func(s *lease.SIDRecords, w *lease.Window) {
			w.State, w.Node, w.Wall, w.Worker = lease.Active, "x", at, true
			s.Holder = record(lease.Holder{Instance: "w", Node: fmt.Sprintf("import-%d", sid), Worker: true})
		})
	}
	for _, c := range examine(f) {
		if c.Name == "workers" {
			if !strings.HasPrefix(c.Detail, "20 workers hold sids: import-0 (sid 10), ") || !strings.HasSuffix(c.Detail, "import-15 (sid 25), and 4 more") {
				t.Errorf("%q", c.Detail)
			}
			return
		}
	}
	t.Error("no line about workers")
}

func TestSound(t *testing.T) {
	for version, want := range map[string]bool{
		"3.5.22": false, "3.5.23": true, "3.6.0": false, "3.6.4": false, "3.6.5": true, "3.6.10": true, "3.7.0": true, "4.0.0": true,
		"3.4.99": false, "2.3.8": false, "3.6.5-rc.1": true, "3.7": true, "": false, "not decided": false,
	} {
		if got := sound(version); got != want {
			t.Errorf("%q: %t", version, got)
		}
	}
}

// TestNoPageKnowsMore: whatever problem the page of a node shows, doctor shows one too.
func TestNoPageKnowsMore(t *testing.T) {
	for _, kind := range []string{
		status.Rewound, status.EtcdAway, status.Unread, status.Records, status.ClockSkewed, status.ClockUnconfirmed,
		status.ClockFalse, status.WindowEnded, status.WindowShort, status.Drained, status.NodesRefuse,
		status.NodesSilent, status.NodesUnknown, status.NodesMissing, status.Vanished, status.NameShared,
		status.SIDsQuarantined, status.NoSIDLeft,
	} {
		f := well()
		f.nodes[0].Cluster.Problems = []status.Problem{{Kind: kind, Level: status.Warn, Text: "n2 has it (since 1).", Page: "x.md"}}
		f.second("10.0.0.2:9000", "i2", "n3")
		f.nodes[1].Cluster.Problems = []status.Problem{{Kind: kind, Level: status.Warn, Text: "n2 has it (since 2).", Page: "x.md"}}
		shown := 0
		for _, c := range examine(f) {
			if c.State != report.OK && c.Name == "cluster" && strings.Contains(c.Detail, "n1 at 10.0.0.1:9000 sees: n2 has it (since 1)") {
				shown++
			}
		}
		if shown != 1 {
			t.Errorf("%s is shown %d times", kind, shown)
		}
	}
}
