// Package workers tests the programs of its directories, which are in other languages.
package workers

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

const (
	number = 6
	epoch  = 1288834974657 // Twitter's
	many   = 4200          // more IDs than a millisecond has
)

// TestClocks: a program whose clock goes back waits or ends, and so does one whose clock does not advance.
// One that went on counting in the same millisecond would run over its 4,096 IDs, into those of the
// next worker.
func TestClocks(t *testing.T) {
	dir := t.TempDir()
	now := time.Now().UnixMilli()
	// The file of a worker, as docs/reference/worker-file.md has it.
	file := binary.LittleEndian.AppendUint64([]byte("ALLOCWK1"), number)
	for _, field := range []int64{1, now - 60_000, now + 60_000, 0, 0, number} {
		file = binary.LittleEndian.AppendUint64(file, uint64(field))
	}
	write(t, filepath.Join(dir, "worker"), string(file), 0o600)
	node := httptest.NewServer(answer(func() int64 { return now }))
	t.Cleanup(node.Close)

	for _, clock := range []struct {
		name   string
		date   string // a script
		step   int64  // ms
		bounds int    // IDs of a program that ends
	}{
		// It is right three times, and 30 s behind from then on. Python reads it 9,000 times before it is right again.
		{"set back", `echo >>READS; [ "$(wc -l <READS)" -le 3 ] && echo RIGHT || echo WRONG`, -30_000, 3},
		{"not advancing", "echo RIGHT", 0, 4096},
	} {
		reads := filepath.Join(dir, "reads")
		write(t, filepath.Join(dir, "date"), "#!/bin/sh\n"+strings.NewReplacer("READS", reads,
			"RIGHT", fmt.Sprint(now), "WRONG", fmt.Sprint(now+clock.step)).Replace(clock.date)+"\n", 0o700)
		write(t, filepath.Join(dir, "stepped.py"), fmt.Sprintf(`import runpy, sys, time
calls = 0
def time_ns():
    global calls
    calls += 1
    return (%[1]d + %[2]d * (1 < calls < 9_000) + calls // 9_000) * 1_000_000
time.time_ns = time_ns
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
`, now, clock.step), 0o600)
		for name, command := range map[string][]string{
			"shell":  {"sh", "shell/ids.sh", strconv.Itoa(many)},
			"http":   {"sh", "http/ids.sh", strconv.Itoa(many), node.URL},
			"python": {"python3", filepath.Join(dir, "stepped.py"), "python/ids.py", strconv.Itoa(many)},
		} {
			t.Run(clock.name+"/"+name, func(t *testing.T) {
				os.Remove(reads)
				ids, problems, err := run(t, command, "PATH="+dir+":"+os.Getenv("PATH"), "ALLOCATOR_WORKER=6",
					"ALLOCATOR_WORKER_FILE="+filepath.Join(dir, "worker"))
				seen := map[string]bool{}
				for _, id := range ids {
					n, parseErr := strconv.ParseInt(id, 10, 64)
					if ms := n>>22 + epoch; parseErr != nil || seen[id] || n>>12&1023 != number || ms < now-60_000 || ms >= now+60_000 {
						t.Fatalf("ID %d is %q: worker %d at %d, seen before: %v", len(seen), id, n>>12&1023, ms, seen[id])
					}
					seen[id] = true
				}
				switch ended := err != nil && strings.Contains(problems, "the clock "); {
				case err == nil && len(ids) == many: // it waited
				case ended && len(ids) <= clock.bounds:
				default:
					t.Errorf("%d IDs, %v: %s", len(ids), err, problems)
				}
			})
		}
	}
}

// TestClockOfTheNode: a program takes the way of its request for no error of its clock, and notices
// one.
func TestClockOfTheNode(t *testing.T) {
	for _, tc := range []struct {
		way, off time.Duration
		right    bool
	}{{400 * time.Millisecond, 0, true}, {0, time.Minute, false}, {0, -time.Minute, false}} {
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(tc.way)
			answer(func() int64 { return time.Now().Add(tc.off).UnixMilli() })(w, r)
			time.Sleep(tc.way)
		}))
		ids, problems, err := run(t, []string{"sh", "http/ids.sh", "3", node.URL})
		if right := err == nil && len(ids) == 3; right != tc.right || !right && !strings.Contains(problems, "the clock is wrong") {
			t.Errorf("%+v: %d IDs, %v: %s", tc, len(ids), err, problems)
		}
		node.Close()
	}
}

// answer is a node that gives one worker, and takes nothing that it should not be asked.
func answer(now func() int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || strings.Contains(string(body), "clock_unix_ms") {
			http.Error(w, "CALLER_CLOCK", http.StatusConflict)
			return
		}
		fmt.Fprintf(w, `{"id":"w","handle":"h","worker":%d,"not_before_unix_ms":%d,"not_after_unix_ms":%d,"extend_at_unix_ms":%[3]d,"now_unix_ms":%[4]d}`,
			number, now()-60_000, now()+60_000, now())
	}
}

// run returns the IDs that a command prints, and what it says about problems.
func run(t *testing.T, command []string, env ...string) (ids []string, problems string, err error) {
	t.Helper()
	for _, tool := range []string{command[0], "od", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	return strings.Fields(string(out)), errs.String(), err
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	fatal.If(t, os.WriteFile(path, []byte(text), mode))
}
