package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/redis/go-redis/v9"
	"github.com/sony/sonyflake"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
)

// dev runs allocator dev with one node, in a process of its own.
func dev(t *testing.T, layout string) devtest.Node {
	t.Helper()
	n := devNodes(t, 1, "--layout", layout)[0]
	if n.State != "ready" {
		t.Fatalf("%+v", n)
	}
	return n
}

// devNodes does so with several nodes, and more flags.
func devNodes(t *testing.T, count int, flags ...string) []devtest.Node {
	t.Helper()
	path, err := buildAllocator()
	fatal.If(t, err)
	return devtest.Dev(t, path, count, append(flags, "--resp")...)
}

// decoded is what a decoder of another system reads in an ID.
type decoded struct {
	unixMilli int64
	sid       int64
	sequence  int64
	sequences int64 // that it has room for
}

// Other people's decoders find in an ID of every surface the time it was issued, the
// sid of its node, and a sequence, in the layout that is theirs.
func TestDecodersOfOthers(t *testing.T) {
	snowflakes := func(epoch int64) func(id int64) decoded {
		return func(id int64) decoded {
			snowflake.Epoch = epoch
			s := snowflake.ID(id)
			return decoded{s.Time(), s.Node(), s.Step(), 1 << snowflake.StepBits}
		}
	}
	for layout, decode := range map[string]func(id int64) decoded{
		"twitter": snowflakes(1288834974657),
		"leaf":    snowflakes(1288834974657),
		// The formulas of Discord's API reference.
		"discord": func(id int64) decoded {
			worker, process := (id&0x3E0000)>>17, (id&0x1F000)>>12
			return decoded{(id >> 22) + 1420070400000, worker<<5 | process, id & 0xFFF, 4096}
		},
		"sonyflake": func(id int64) decoded {
			start := time.Date(2014, 9, 1, 0, 0, 0, 0, time.UTC)
			return decoded{start.Add(sonyflake.ElapsedTime(uint64(id))).UnixMilli(), int64(sonyflake.MachineID(uint64(id))), int64(sonyflake.SequenceNumber(uint64(id))), 256}
		},
	} {
		t.Run(layout, func(t *testing.T) {
			n := dev(t, layout)
			for name, s := range surfaces(t, n, layout) {
				began := time.Now()
				ids, sid := s()
				ended := time.Now()
				if len(ids) == 0 || !slices.IsSorted(ids) {
					t.Errorf("%s: %d", name, ids)
				}
				for _, id := range ids {
					got := decode(id)
					// An ID may be as far ahead of the clock as issue.max-lead allows.
					at := time.UnixMilli(got.unixMilli)
					if at.Before(began.Add(-time.Second)) || at.After(ended.Add(2*time.Second)) || got.sid != sid || got.sequence < 0 || got.sequence >= got.sequences {
						t.Errorf("%s: %d of sid %d, drawn at %v, has %+v", name, id, sid, began, got)
					}
				}
			}
		})
	}
}

// surfaces returns calls that draw IDs in every way there is. Each returns them and
// the sid they are of.
func surfaces(t *testing.T, n devtest.Node, layout string) map[string]func() ([]int64, int64) {
	conn, err := grpc.NewClient(n.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	service := pb.NewAllocatorServiceClient(conn)
	redisClient := redis.NewClient(&redis.Options{Addr: n.RESP, DisableIdentity: true})
	t.Cleanup(func() { _ = redisClient.Close() })
	calls := map[string]func() ([]int64, int64){
		"HTTP": func() ([]int64, int64) {
			var body struct {
				IDs []string
				SID int64
			}
			fatal.If(t, json.Unmarshal(post(t, n, "count=100&as=int", "*/*"), &body))
			return integers(t, body.IDs), body.SID
		},
		"HTTP, lines": func() ([]int64, int64) {
			return integers(t, strings.Fields(string(post(t, n, "count=100&as=int", "text/plain")))), int64(n.SID)
		},
		"HTTP, flakes": func() ([]int64, int64) {
			var ids []int64
			for _, s := range strings.Fields(string(post(t, n, "count=100", "text/plain"))) {
				id, err := flake.Parse(s)
				fatal.If(t, err)
				ids = append(ids, int64(id))
			}
			return ids, int64(n.SID)
		},
		"gRPC": func() ([]int64, int64) {
			r, err := service.Allocate(t.Context(), &pb.AllocateRequest{Count: 200})
			fatal.If(t, err)
			return listed(r), int64(r.GetSid())
		},
		"gRPC, texts": func() ([]int64, int64) {
			r, err := service.Allocate(t.Context(), &pb.AllocateRequest{Count: 100, Form: pb.Form_FORM_INT})
			fatal.If(t, err)
			return integers(t, r.GetIds()), int64(r.GetSid())
		},
		"gRPC stream": func() ([]int64, int64) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := service.AllocateStream(ctx)
			fatal.If(t, err)
			var ids []int64
			for i := range int64(20) {
				fatal.If(t, s.Send(&pb.AllocateStreamRequest{Sequence: i, Request: &pb.AllocateRequest{Count: 7}}))
				r, err := s.Recv()
				if err != nil || r.GetResponse() == nil {
					t.Fatal(r, err)
				}
				ids = append(ids, listed(r.GetResponse())...)
			}
			return ids, int64(n.SID)
		},
		"RESP": func() ([]int64, int64) {
			ids, err := redisClient.Do(t.Context(), "ID.NEXT", "COUNT", 100, "FORMAT", "int").StringSlice()
			fatal.If(t, err)
			return integers(t, ids), int64(n.SID)
		},
		"RESP, pipeline": func() ([]int64, int64) {
			p := redisClient.Pipeline()
			for range 50 {
				p.Do(t.Context(), "ID.NEXT", "FORMAT", "int")
			}
			answers, err := p.Exec(t.Context())
			fatal.If(t, err)
			var ids []string
			for _, a := range answers {
				ids = append(ids, fmt.Sprint(a.(*redis.Cmd).Val()))
			}
			return integers(t, ids), int64(n.SID)
		},
		"embed": func() ([]int64, int64) {
			a, err := embed.Open(t.Context(), embed.Config{Endpoints: []string{n.Etcd}, Name: "program", SIDs: embed.All, Settings: map[string]string{"layout": layout}})
			fatal.If(t, err)
			defer a.Close()
			b, err := a.Block(t.Context(), 100)
			fatal.If(t, err)
			return asIntegers(b.Append(nil)), int64(b.SID)
		},
	}
	for _, mode := range []client.Mode{client.Coalesce, client.Direct, client.Prefetch} {
		calls["SDK, "+mode.String()] = func() ([]int64, int64) {
			c, err := client.New(client.Options{Targets: []string{n.GRPC}, Mode: mode})
			fatal.If(t, err)
			defer c.Close()
			ids := make([]flake.ID, 10_000) // more than a millisecond has
			fatal.If(t, c.NextN(t.Context(), ids))
			return asIntegers(ids), int64(n.SID)
		}
	}
	return calls
}

func post(t *testing.T, n devtest.Node, query, accept string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.HTTP+"/v1/ids?"+query, nil)
	fatal.If(t, err)
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	fatal.If(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", res.Status, b, err)
	}
	return b
}

func integers(t *testing.T, texts []string) []int64 {
	t.Helper()
	var ids []int64
	for _, s := range texts {
		id, err := strconv.ParseInt(s, 10, 64)
		fatal.If(t, err)
		ids = append(ids, id)
	}
	return ids
}

func asIntegers(ids []flake.ID) []int64 {
	var out []int64
	for _, id := range ids {
		out = append(out, int64(id))
	}
	return out
}

func listed(r *pb.AllocateResponse) []int64 {
	var ids []int64
	for i := range int64(r.GetCount()) {
		ids = append(ids, r.GetFirst()+i*r.GetStride())
	}
	return ids
}

// Node.js reads the IDs of layout js53 from JSON without losing a digit.
//
// Incident T39 (IDs as JSON numbers), docs/INCIDENTS.md.
func TestNodeReadsNumbers(t *testing.T) {
	program := tool(t, "node")
	if out, err := run(t, "", program, "--eval", "fetch"); err != nil {
		t.Skipf("not run: this node has no fetch, which came with 18: %s", out)
	}
	script, err := filepath.Abs(filepath.Join("testdata", "numbers.mjs"))
	fatal.If(t, err)
	// The second has all 53 bits in use: its 41 bits of milliseconds end in 2039.
	for _, layout := range []string{"js53", "js53,epoch=1970-01-01"} {
		t.Run(layout, func(t *testing.T) {
			n := dev(t, layout)
			if out, err := run(t, "", program, script, "http://"+n.HTTP); err != nil || !strings.HasSuffix(out, " IDs: OK\n") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("others are refused", func(t *testing.T) {
		n := dev(t, "discord")
		if out, err := run(t, "", program, script, "http://"+n.HTTP); err == nil || !strings.Contains(out, "as is number: IDs of layout discord have up to 63 bits, and JavaScript's numbers 53; use int, which is a string") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
