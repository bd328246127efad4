// Package workers tests the programs of its directories, which are in other languages.
package workers

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	number = 6
	epoch  = 1288834974657 // Twitter's
	many   = 4200          // more IDs than a millisecond has
)

// TestClockSetBack: a program whose clock goes back waits or ends. One that went on counting
// in the same millisecond would run over its 4,096 IDs, into those of the next worker.
func TestClockSetBack(t *testing.T) {
	dir := t.TempDir()
	now := time.Now().UnixMilli()
	// The file of a worker, as docs/reference/worker-file.md has it.
	file := binary.LittleEndian.AppendUint64([]byte("ALLOCWK1"), number)
	for _, field := range []int64{1, now - 60_000, now + 60_000, 0, 0, number} {
		file = binary.LittleEndian.AppendUint64(file, uint64(field))
	}
	write(t, filepath.Join(dir, "worker"), string(file), 0o600)
	// A clock that is right twice, and 30 s behind from then on.
	write(t, filepath.Join(dir, "date"), fmt.Sprintf(`#!/bin/sh
echo >>%[1]s/reads
[ "$(wc -l <%[1]s/reads)" -le 2 ] && echo %[2]d || echo %[3]d
`, dir, now, now-30_000), 0o700)
	write(t, filepath.Join(dir, "stepped.py"), fmt.Sprintf(`import runpy, sys, time
calls = 0
def time_ns():
    global calls
    calls += 1
    return (%[1]d - 30_000 * (1 < calls < 9_000) + calls // 9_000) * 1_000_000
time.time_ns = time_ns
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
`, now), 0o600)
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"id":"w","handle":"h","worker":%d,"not_before_unix_ms":%d,"not_after_unix_ms":%d,"extend_at_unix_ms":%[3]d}`,
			number, now-60_000, now+60_000)
	}))
	t.Cleanup(node.Close)

	for name, command := range map[string][]string{
		"shell":  {"sh", "shell/ids.sh", strconv.Itoa(many)},
		"http":   {"sh", "http/ids.sh", strconv.Itoa(many), node.URL},
		"python": {"python3", filepath.Join(dir, "stepped.py"), "python/ids.py", strconv.Itoa(many)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, tool := range []string{command[0], "od", "curl"} {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skip(err)
				}
			}
			os.Remove(filepath.Join(dir, "reads"))
			cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "ALLOCATOR_WORKER=6",
				"ALLOCATOR_WORKER_FILE="+filepath.Join(dir, "worker"))
			var problems strings.Builder
			cmd.Stderr = &problems
			out, err := cmd.Output()
			ids := strings.Fields(string(out))
			seen := map[string]bool{}
			for _, id := range ids {
				n, parseErr := strconv.ParseInt(id, 10, 64)
				if ms := n>>22 + epoch; parseErr != nil || seen[id] || n>>12&1023 != number || ms < now-60_000 || ms >= now+60_000 {
					t.Fatalf("ID %d is %q: worker %d at %d, seen before: %v", len(seen), id, n>>12&1023, ms, seen[id])
				}
				seen[id] = true
			}
			switch refused := err != nil && strings.Contains(problems.String(), "the clock went back"); {
			case err == nil && len(ids) == many: // it waited
			case refused && len(ids) <= 2:
			default:
				t.Errorf("%d IDs, %v: %s", len(ids), err, problems.String())
			}
		})
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}
