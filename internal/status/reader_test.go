package status_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// decode asks HTTP and returns the answer's bytes.
func decode(env *servertest.Env, target string) (*http.Response, string) {
	env.T.Helper()
	res := env.Do("GET", target, "")
	b, _ := io.ReadAll(res.Body)
	return res, strings.TrimSpace(string(b))
}

// TestDecodeHTTP: the fields, their order and their types are part of the
// contract with programs that read them.
func TestDecodeHTTP(t *testing.T) {
	env := servertest.New(t)
	env.Dir.Tenure = &lease.LedgerLine{Term: 4, Instance: "a-1", Node: "node-a", Era: 1, Since: servertest.Start - 10}
	id := servertest.At(servertest.Start, 3<<5|7)
	holder := `"holder":{"node":"node-a","instance":"a-1","term":4,"since":"2026-01-31T23:59:59.990Z"}`
	parts := `"kind":"flake","layout":"scalable","base32":"01XA2VP000037","int":"69033263923200103","hex":"0xF5415D80000067",` +
		`"bin":"0b` + fmt.Sprintf("%b", id.Int64()) + `","bytes_hex":"00f5415d80000067","timestamp_ms":65836800000,` +
		`"unix_ms":1769904000000,"time":"2026-02-01T00:00:00.000Z","randomness":3,"sid":7`
	parts = strings.Replace(parts, "69033263923200103", servertest.Decimal(id), 1)
	parts = strings.Replace(parts, "0xF5415D80000067", id.Hex(), 1)
	parts = strings.Replace(parts, "00f5415d80000067", string(id.AppendHex16(nil)), 1)
	for _, text := range []string{id.String(), servertest.Decimal(id), strings.ToLower(id.String()), id.Hex() + "?kind=hex", servertest.Decimal(id) + "?kind=int"} {
		res, got := decode(env, "/v1/ids/"+text)
		if want := "{" + parts + "," + holder + "}"; res.StatusCode != 200 || got != want {
			t.Errorf("%s: %d\n got %s\nwant %s", text, res.StatusCode, got, want)
		}
		if c := res.Header.Get("Cache-Control"); c != "private, max-age=60" {
			t.Errorf("Cache-Control %q", c)
		}
	}
	wide := servertest.Wide(id)
	for kind, text := range map[string]string{"ulid": wide.String(), "uuid": wide.UUID()} {
		_, got := decode(env, "/v1/ids/"+text)
		want := fmt.Sprintf(`{"kind":%q,"ulid":%q,"uuid":%q,"u128":%q,"bytes_hex":%q,"unix_ms":1769904000000,`+
			`"time":"2026-02-01T00:00:00.000Z","randomness_hex":%q,%s"issued_here":"possible","flake":{%s},%s}`,
			kind, wide.String(), wide.UUID(), wide.Uint128(), wide.Hex(), wide.Hex()[12:],
			map[string]string{"uuid": `"uuid_version":7,"uuid_variant":"RFC 9562",`}[kind], parts, holder)
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", kind, got, want)
		}
	}
	asked := len(env.Dir.Asked)
	_, got := decode(env, "/v1/ids/01ARZ3NDEKTSV4RRFFQ69G5FAV")
	if !strings.HasSuffix(got, `"randomness_hex":"d6764c61efb99302bd5b","issued_here":"no","flake":null,"holder":null}`) || len(env.Dir.Asked) != asked {
		t.Errorf("a ULID of another origin: %s", got)
	}
	_, got = decode(env, "/v1/ids/7ZZZZZZZZZZZZZZZZZZZZZZZZZ")
	if !strings.Contains(got, `"unix_ms":281474976710655,"time":null`) {
		t.Errorf("a year of five digits: %s", got)
	}
	_, got = decode(env, "/v1/ids/"+servertest.At(servertest.Start-11, 7).String())
	if !strings.HasSuffix(got, `"holder":null}`) {
		t.Errorf("before the ledger begins: %s", got)
	}
	// A time that no window of the sid ever reached is nobody's, whoever held the sid last.
	env.Dir.Set(func(d *servertest.Directory) { d.View = clusterOfTwo() })
	env.Clock.Advance(time.Second)
	beyond := `"holder":null,"holder_problem":"not issued in this space: its time is beyond every window that its sid ever had"}`
	for _, tc := range []struct {
		at   clock.Millis
		sid  int64
		want string
	}{
		{servertest.Start + 99, 3, holder + "}"},
		{servertest.Start + 100, 3, beyond}, // The window ends.
		{servertest.Start + 3_600_000, 3, beyond},
		{servertest.Start + 50*365*24*60*60*1000, 3, beyond},
		{servertest.Start - 1, 4, holder + "}"},
		{servertest.Start, 4, beyond},                   // It was released below.
		{servertest.Start + 3_600_000, 8, holder + "}"}, // Its record was lost.
		{servertest.Start + 3_600_000, 9, holder + "}"}, // Its record cannot be read.
	} {
		if res, got := decode(env, "/v1/ids/"+servertest.At(tc.at, tc.sid).String()); !strings.HasSuffix(got, tc.want) || res.StatusCode != 200 {
			t.Errorf("at %d: %s", tc.at, got)
		}
	}
	for target, want := range map[string]string{
		"/v1/ids/abc": "INVALID_ID bad_length", "/v1/ids/01XA2VP00000U": "INVALID_ID bad_char",
		"/v1/ids/-1": "INVALID_ID out_of_range", "/v1/ids/1x1": "INVALID_ID bad_length",
		"/v1/ids/1?kind=base64": "INVALID_FORMAT bad_kind", "/v1/ids/1?kind=ulid": "INVALID_ID bad_length",
		"/v1/ids/%00": "INVALID_ID bad_length", "/v1/ids/a%2Fb": "INVALID_ID bad_length",
	} {
		p := servertest.Body[servertest.Problem](t, env.Do("GET", target, ""))
		if got := p.Reason + " " + p.Metadata["class"]; got != want || p.Status != 400 {
			t.Errorf("%s: %s, %d, want %s", target, got, p.Status, want)
		}
	}
}

// TestForeignIsReadAfterwards: an ID of a window that was confirmed since the latest read is its
// holder's.
func TestForeignIsReadAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := servertest.New(t)
		env.Dir.Tenure = &lease.LedgerLine{Term: 2, Instance: "b-1", Node: "node-b", Era: 1, Since: servertest.Start - 10}
		env.Dir.Set(func(d *servertest.Directory) { d.View = clusterOfTwo() })
		env.Do("GET", "/v1/cluster", "")
		env.Clock.Advance(50 * time.Millisecond)
		later := clusterOfTwo()
		s := later.SIDs[3]
		s.Window.Value.Ceil += 1_000
		later.SIDs[3] = s
		env.Dir.Set(func(d *servertest.Directory) { d.View = later })
		id := "/v1/ids/" + servertest.At(servertest.Start+200, 3).String()
		var got string
		var wait sync.WaitGroup
		wait.Go(func() { _, got = decode(env, id) })
		synctest.Wait()
		env.Clock.Advance(150 * time.Millisecond)
		wait.Wait()
		if !strings.Contains(got, `"node":"node-b"`) {
			t.Error(got)
		}
		env.Clock.Advance(time.Second)
		if _, got := decode(env, "/v1/ids/"+servertest.At(servertest.Start+1_100, 3).String()); !strings.Contains(got, "beyond every window") {
			t.Error(got)
		}
		if env.Dir.Loads != 3 {
			t.Errorf("%d reads of the space", env.Dir.Loads)
		}
	})
}

// TestDecodeWithoutLedger: an ID is decoded without its holder when the ledger
// cannot be read in time, and the answer says so.
func TestDecodeWithoutLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := servertest.New(t)
		id := servertest.At(servertest.Start, 7).String()
		for name, fail := range map[string]func(*servertest.Directory){
			"the ledger could not be read":         func(d *servertest.Directory) { d.Err, d.Hang = servertest.ErrAway, false },
			"the ledger could not be read in time": func(d *servertest.Directory) { d.Err, d.Hang = nil, true },
		} {
			env.Dir.Set(fail)
			began := time.Now()
			res, got := decode(env, "/v1/ids/"+id)
			if res.StatusCode != 200 || !strings.HasSuffix(got, `"sid":7,"holder":null,"holder_problem":"`+name+`"}`) {
				t.Errorf("%d %s", res.StatusCode, got)
			}
			if res.Header.Get("Cache-Control") != "no-store" {
				t.Error("an answer with a gap may be kept")
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("took %v", took)
			}
		}
		// A crowd of readers does not become a crowd at etcd.
		env.Dir.Set(func(d *servertest.Directory) { d.Err, d.Hang = nil, true })
		var crowd sync.WaitGroup
		for range 40 {
			crowd.Go(func() { decode(env, "/v1/ids/"+id) })
		}
		synctest.Wait()
		if n := len(env.Dir.Asked); n != 2+16 {
			t.Errorf("%d reads of the ledger, want 2 and 16", n)
		}
		crowd.Wait()
	})
}

func clusterOfTwo() lease.View {
	now := servertest.Start
	window := func(w lease.Window) lease.Entry[lease.Window] {
		return lease.NewEntry[lease.Window](9, 0, lease.Encode(w))
	}
	holder := func(h lease.Holder) lease.Entry[lease.Holder] {
		return lease.NewEntry[lease.Holder](9, 5, lease.Encode(h))
	}
	w := lease.Window{Era: 1, Term: 2, Instance: "b-1", Node: "node-b", Nonce: "n", Base: now - 100, State: lease.Active}
	held, free, waiting := w, w, w
	held.Ceil, free.Ceil, waiting.Ceil = now+100, now, now+1
	free.State, waiting.Wall = lease.Released, now-50
	broken := window(free)
	broken.Raw, broken.Err = "x", lease.ErrChecksum
	return lease.View{
		Revision: 77,
		Config:   lease.NewEntry[lease.Space](1, 0, lease.Encode(lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool-1"})),
		Era:      lease.NewEntry[lease.Era](2, 0, lease.Encode(lease.Era{Number: 3, Floor: 5})),
		SIDs: map[flake.SID]lease.SIDRecords{
			9: {Window: broken},
			3: {Window: window(held), Holder: holder(lease.Holder{Instance: "b-1", Node: "node-b"})},
			4: {Window: window(free)},
			5: {Window: window(waiting)},
			6: {Window: window(free)},
		},
		Nodes: []lease.Registration{
			{Instance: "c-1", Node: "node-c", Version: "v0"},
			{Instance: "b-1", Node: "node-b", Version: "v0", GRPC: "b:1", HTTP: "b:2"},
		},
	}
}

func TestCluster(t *testing.T) {
	env := servertest.New(t)
	env.Dir.View = clusterOfTwo()
	record := func(ceil clock.Millis, state lease.WindowState) lease.SIDRecords {
		return lease.SIDRecords{Window: lease.NewEntry[lease.Window](9, 0, lease.Encode(lease.Window{
			Era: 1, Term: 2, Instance: "op", Node: lease.Operator, Nonce: "n", State: state, By: "ann", Reason: "why", Ceil: servertest.Start + ceil}))}
	}
	env.Dir.View.SIDs[7], env.Dir.View.SIDs[8] = record(0, lease.Quarantined), record(60_001, lease.Released)
	// The node read them minutes ago, and must not be judged by what it made of them then.
	env.Report(func(s *lease.Status) { s.Quarantined = map[flake.SID]string{6: "ann quarantined it"} })
	var got struct {
		Space, Pool   string
		Era, Revision int64
		Nodes         []struct {
			Name string
			SID  int
		}
		SIDs []struct {
			SID                  int
			State, Node, Problem string
			Written              int64 `json:"written_unix_ms"`
			Unreleased           bool
		}
		Self struct {
			Name  string
			Ready bool
			SID   int
		}
		Problem string
	}
	fatal.If(t, json.NewDecoder(env.Do("GET", "/v1/cluster", "").Body).Decode(&got))
	summary := fmt.Sprint(got)
	want := "{test pool-1 3 77 [{node-b 3} {node-c -1}] [{3 held node-b  0 false} {4 free node-b  0 false} {5 waiting node-b usable in 1ms 1769903999950 true}" +
		" {6 free node-b  0 false} {7 quarantined operator ann quarantined it: why 0 false} {8 quarantined operator ann released it: why; " +
		"usable at 2026-02-01T00:01:00Z 0 false} {9 quarantined node-b lease: record's checksum does not match 0 false}] {node-a true 7} }"
	if summary != want {
		t.Errorf("got  %s\nwant %s", summary, want)
	}
	res, err := pb.NewAdminServiceClient(env.Dial()).GetCluster(t.Context(), &pb.GetClusterRequest{})
	fatal.If(t, err)
	if res.Era != 3 || res.Revision != 77 || len(res.Nodes) != 2 || len(res.Sids) != 7 || !res.Sids[2].Unreleased || res.Sids[2].WrittenUnixMs != 1769903999950 || res.Self.Sid != 7 || !res.Self.Ready ||
		res.PoolSize != 32 || res.Nodes[0].Sid != 3 || res.Sids[0].State != "held" || res.Layout != "scalable" {
		t.Errorf("%v", res)
	}
}

// TestClusterCached: many requests make few reads, and an old view is not kept.
func TestClusterCached(t *testing.T) {
	env := servertest.New(t)
	for range 50 {
		env.Do("GET", "/v1/cluster", "")
	}
	env.Clock.Advance(199 * time.Millisecond)
	env.Do("GET", "/v1/cluster", "")
	if env.Dir.Loads != 1 {
		t.Errorf("%d reads within 199 ms", env.Dir.Loads)
	}
	env.Clock.Advance(time.Millisecond)
	env.Do("GET", "/v1/cluster", "")
	if env.Dir.Loads != 2 {
		t.Errorf("%d reads after 200 ms", env.Dir.Loads)
	}
}

// TestClusterWithoutEtcd: the node shows itself, and says what it cannot know.
func TestClusterWithoutEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := servertest.New(t)
		servertest.Skewed.Set(env)
		for name, fail := range map[string]func(*servertest.Directory){
			"away":  func(d *servertest.Directory) { d.Err, d.Hang = servertest.ErrAway, false },
			"hangs": func(d *servertest.Directory) { d.Err, d.Hang = nil, true },
		} {
			env.Dir.Set(fail)
			env.Clock.Advance(time.Second)
			began := time.Now()
			res := env.Do("GET", "/v1/cluster", "")
			b, _ := io.ReadAll(res.Body)
			for _, want := range []string{
				`"pool":"` + servertest.Pool + `"`, `"read_unix_ms":0,`, `"nodes":[],"sids":[]`, `"problem":"etcd cannot be read`, `"refusing":"CLOCK_SKEW"`, `"sid":7`,
			} {
				if !strings.Contains(string(b), want) {
					t.Errorf("%s: no %s in %s", name, want, b)
				}
			}
			if took := time.Since(began); res.StatusCode != 200 || took > 2*time.Second {
				t.Errorf("%s: %d after %v", name, res.StatusCode, took)
			}
			began = time.Now()
			if env.Do("GET", "/v1/cluster", ""); time.Since(began) > 0 {
				t.Errorf("%s: the next request took %v, although the read before it had just failed", name, time.Since(began))
			}
		}
		// Whom the node listed before etcd went away is still shown.
		env.Report(func(s *lease.Status) {
			s.Nodes = []lease.Registration{{Instance: "c-1", Node: "node-c", GRPC: "c:9000"}, {Instance: "a-1", Node: "node-a", GRPC: "a:9000"}}
		})
		if b, _ := io.ReadAll(env.Do("GET", "/v1/cluster", "").Body); !strings.Contains(string(b), `"name":"node-c","version":"","grpc_address":"c:9000"`) || !strings.Contains(string(b), `"sids":[]`) {
			t.Errorf("after a list: %s", b)
		}
		env.Clock.Advance(time.Second)
		// A caller that leaves neither waits nor ends the read for others.
		gate := make(chan struct{})
		env.Dir.Set(func(d *servertest.Directory) {
			d.Loads, d.Err, d.Hang, d.Gate, d.View = 0, nil, false, gate, clusterOfTwo()
		})
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan int, 1)
		go func() {
			first <- env.Send(httptest.NewRequest("GET", "/v1/cluster", nil).WithContext(ctx)).StatusCode
		}()
		synctest.Wait()
		second := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(env.Do("GET", "/v1/cluster", "").Body)
			second <- string(b)
		}()
		synctest.Wait()
		cancel()
		if got := <-first; got != 503 {
			t.Errorf("the caller that left got %d", got)
		}
		synctest.Wait()
		close(gate)
		if got := <-second; !strings.Contains(got, `"revision":77`) || env.Dir.Loads != 1 {
			t.Errorf("after %d reads the other got %s", env.Dir.Loads, got)
		}
	})
}

// TestClusterOfGarbage: thousands of registrations fit into an answer that gRPC clients
// take, holders are among them, and texts are printable.
func TestClusterOfGarbage(t *testing.T) {
	env := servertest.New(t)
	env.Dir.Set(func(d *servertest.Directory) {
		for i := range 20_000 {
			instance := lease.Instance(fmt.Sprintf("%036d", i))
			d.View.Nodes = append(d.View.Nodes, lease.NewRegistration(instance, 1, lease.Encode(lease.Registration{
				Instance: instance, Node: fmt.Sprintf("fake-%05d", i) + strings.Repeat("x", 5000), Version: "\x1b[31m", GRPC: strings.Repeat("y", 5000),
			})))
		}
		d.View.SIDs = map[flake.SID]lease.SIDRecords{}
		d.View.SIDs[3] = lease.SIDRecords{Holder: lease.Entry[lease.Holder]{Rev: 1, Value: lease.Holder{Node: "z\x1b", Instance: "holder"}}}
		d.View.Nodes = append(d.View.Nodes, lease.Registration{Instance: "holder", Node: "z"})
	})
	env.Clock.Advance(time.Second)
	res, err := pb.NewAdminServiceClient(env.Dial()).GetCluster(t.Context(), &pb.GetClusterRequest{})
	fatal.If(t, err)
	last := res.Nodes[len(res.Nodes)-1]
	if len(res.Nodes) != 2048 || last.Name != "z" || last.Sid != 3 || !strings.Contains(res.Problem, "17953 more nodes are registered") {
		t.Errorf("%d nodes, the last %v; %s", len(res.Nodes), last, res.Problem)
	}
	if strings.ContainsRune(res.String(), '\x1b') {
		t.Error("escapes of a terminal are in the answer")
	}
}

// TestConsoleURLs: what a node registered as the address of its pages is given on as a
// URL that only leads there, or not at all.
func TestConsoleURLs(t *testing.T) {
	env := servertest.New(t)
	env.Dir.View = clusterOfTwo()
	registered := map[string]string{
		"http://node-1:7947": "http://node-1:7947/console/", "https://n1.ids.example.com": "https://n1.ids.example.com:443/console/",
		"http://[2001:db8::1]:7947": "http://[2001:db8::1]:7947/console/", "http://10.0.0.1:07947": "http://10.0.0.1:7947/console/",
	}
	for _, hostile := range []string{
		"", "node-1:7947", "javascript:alert(1)", "javascript://node-1:7947/%0aalert(1)", "data:text/html,x", "//node-1:7947", "http:node-1", "http://", "http://:7947",
		"http://ann@node-1:7947", "http://node-1:7947/", "http://node-1:7947/console/login?to=x", "http://node-1:7947#x", "http://node-1:0", "http://node-1:70000", "http://node-1:-1",
		`http://a"onclick="alert(1)`, "http://a<b>:7947", "http://a b:7947", "http://node-1:7947\n", "http://[fe80::1%25eth0]:7947", "HTTP://node-1:7947\x00", "http://" + strings.Repeat("a", 300) + ":7947",
		"http://xn--/\u202e:7947", "http://%6eode:7947",
	} {
		registered[hostile] = ""
	}
	env.Dir.View.Nodes = nil
	for text := range registered {
		r := lease.Registration{Instance: lease.Instance(text), Node: "n", Console: text, Started: -1}
		env.Dir.View.Nodes = append(env.Dir.View.Nodes, lease.NewRegistration(r.Instance, 1, lease.Encode(r)))
	}
	var got struct {
		Nodes []struct {
			Instance string
			Console  string `json:"console_url"`
			Started  int64  `json:"started_unix_ms"`
		}
	}
	fatal.If(t, json.NewDecoder(env.Do("GET", "/v1/cluster", "").Body).Decode(&got))
	res, err := pb.NewAdminServiceClient(env.Dial()).GetCluster(t.Context(), &pb.GetClusterRequest{})
	fatal.If(t, err)
	if len(got.Nodes) != len(registered) {
		t.Fatalf("%d nodes, want %d", len(got.Nodes), len(registered))
	}
	for i, n := range got.Nodes {
		if n.Started != 0 {
			t.Errorf("%q: started at %d", n.Instance, n.Started)
		}
		for text, want := range registered {
			if n.Instance == lease.Printable(text) && (n.Console != want || res.Nodes[i].ConsoleUrl != want) {
				t.Errorf("%q: %q, over gRPC %q, want %q", text, n.Console, res.Nodes[i].ConsoleUrl, want)
			}
		}
	}
}
