package worker

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
)

// TestCopiedMemory: a machine that was saved and resumed twice goes on with old clocks, and both copies have one
// worker. Once the wall clock of a copy is set forward, that copy loses it.
func TestCopiedMemory(t *testing.T) {
	for _, tc := range []struct {
		by   time.Duration
		lost bool
	}{{0, false}, {-time.Hour, false}, {500 * time.Millisecond, false}, {time.Second, true}, {time.Hour, true}} {
		for _, by := range []string{"permit", "interval", "extension", "close"} {
			var ahead time.Duration
			w := &Worker{unit: 1, ahead: func() time.Duration { return ahead }, lost: make(chan struct{}),
				demand: make(chan struct{}, 1), ended: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			w.stop = cancel
			now := time.Now().UnixMilli()
			w.notAfter.Store(now + 60_000)
			fatal.If(t, w.Permit(now))
			ahead = tc.by
			if by == "extension" || by == "close" {
				service := counting{}
				w.service = &service
				if by == "extension" {
					w.run(ctx, &keep{}, time.Now())
				} else {
					close(w.ended)
					fatal.If(t, w.Close())
				}
				if asked := service.asked > 0; asked == tc.lost {
					t.Errorf("%s, set by %v: %d calls", by, tc.by, service.asked)
				}
				continue
			}
			if by == "interval" {
				if _, end := w.Interval(); (end == 0) != tc.lost {
					t.Errorf("set by %v: the interval ends at %d", tc.by, end)
				}
			}
			err := w.Permit(now + 59_000)
			if !errors.Is(err, ErrLost) == tc.lost || !tc.lost && err != nil || ctx.Err() == nil == tc.lost {
				t.Errorf("set by %v: permit says %v", tc.by, err)
			}
			if tc.lost && !strings.Contains(fmt.Sprint(w.Err()), "set forward by "+tc.by.String()) {
				t.Errorf("%v", w.Err())
			}
			cancel()
		}
	}
}

// TestCopiedWhileLooking: the machine is saved and resumed an hour later between two clock reads of Permit. IDs of the
// time after that are permitted only once the clocks were compared again.
func TestCopiedWhileLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Worker{ahead: func() time.Duration { time.Sleep(time.Hour); return 0 }}
		begun := time.Now()
		w.look()
		if sound := time.UnixMilli(w.sound.Load()); sound.Sub(begun) > lookAhead {
			t.Errorf("IDs are permitted without a clock read for %v", sound.Sub(begun))
		}
	})
}

// counting says of each worker that it is unknown.
type counting struct {
	pb.WorkerServiceClient
	asked int
}

func (c *counting) ExtendWorker(context.Context, *pb.ExtendWorkerRequest, ...grpc.CallOption) (*pb.Worker, error) {
	c.asked++
	return nil, &client.Refusal{Reason: client.UnknownWorker}
}

func (c *counting) ReleaseWorker(context.Context, *pb.ReleaseWorkerRequest, ...grpc.CallOption) (
	*pb.ReleaseWorkerResponse, error) {
	c.asked++
	return nil, &client.Refusal{Reason: client.UnknownWorker}
}

// TestPermitWhileLost: what is refused in the middle of a loss is lost too, and not closed.
func TestPermitWhileLost(t *testing.T) {
	var during error
	w := &Worker{lost: make(chan struct{})}
	w.stop = func() { during = w.refuse(0) } // between the end of the interval and that of Lost
	if w.lose(errors.New("why")); during != ErrLost {
		t.Error(during)
	}
}

// A time that an extension makes permissible just while Permit is asked for it is counted
// as used when Permit returns.
func TestPermitDuringExtension(t *testing.T) {
	const begin, extensions = 1_000_000, 2_000
	w := &Worker{unit: 1, lost: make(chan struct{}), demand: make(chan struct{}, 1)}
	w.notAfter.Store(begin)
	w.sound.Store(math.MaxInt64) // Permit reads no clock
	permitted := make(chan int64)
	go func() {
		defer close(permitted)
		for ms := int64(begin); ms < begin+extensions; {
			if w.Permit(ms) == nil {
				if used := w.used.Load(); used <= ms {
					t.Errorf("permitted %d, and used until %d", ms, used)
					return
				}
				ms++
			}
			select {
			case permitted <- ms:
			default:
			}
		}
	}()
	for to := int64(begin + 1); to <= begin+extensions; to++ {
		if _, asks := <-permitted; !asks { // it failed
			return
		}
		w.extend(to)
	}
	for range permitted { // until it has asked for all
	}
}

// TestPermitReadsUsedFirst: Permit reads used before it looks at the interval. Otherwise a time
// could be permitted that another goroutine raised too late for Close to see it: three goroutines
// have to meet within nanoseconds, which no run shows. The model does, as the mutant
// worker-permit-looks-first; this holds the code to the model.
func TestPermitReadsUsedFirst(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "worker.go", nil, 0)
	fatal.If(t, err)
	var reads []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "Permit" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if s := types.ExprString(call.Fun); strings.HasSuffix(s, ".Load") {
					reads = append(reads, s)
				}
			}
			return true
		})
	}
	if got := strings.Join(reads, " "); got != "w.sound.Load w.used.Load w.floor.Load w.notAfter.Load w.notAfter.Load" {
		t.Errorf("Permit reads %s", got)
	}
}
