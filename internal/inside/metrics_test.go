package inside

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/config"
)

// The 99th percentile is the upper bound of the bucket that holds it.
func TestSyncP99(t *testing.T) {
	bucket := func(lines ...string) string {
		text := "# TYPE etcd_disk_wal_fsync_duration_seconds histogram\n"
		for _, line := range lines {
			text += `etcd_disk_wal_fsync_duration_seconds_bucket{le=` + line + "\n"
		}
		return text + "etcd_disk_wal_fsync_duration_seconds_sum 1\netcd_disk_wal_fsync_duration_seconds_count 1\n"
	}
	for _, tc := range []struct {
		name, text string
		want       time.Duration // 0: none
	}{
		{"nothing", "", 0},
		{"of something else", `etcd_disk_backend_commit_duration_seconds_bucket{le="0.001"} 5` + "\n", 0},
		{"before the first", bucket(`"0.001"} 0`, `"+Inf"} 0`), 0},
		{"all in the first", bucket(`"0.001"} 5`, `"0.002"} 5`, `"+Inf"} 5`), time.Millisecond},
		{"99 of 100", bucket(`"0.001"} 98`, `"0.002"} 99`, `"0.004"} 100`, `"+Inf"} 100`), 2 * time.Millisecond},
		{"98 of 100", bucket(`"0.001"} 98`, `"0.002"} 98`, `"0.004"} 100`, `"+Inf"} 100`), 4 * time.Millisecond},
		{"above all bounds", bucket(`"0.001"} 0`, `"8.192"} 1`, `"+Inf"} 100`), 8192 * time.Millisecond},
		{"large counts", bucket(`"0.001"} 1`, `"0.002"} 1e+06`, `"+Inf"} 1e+06`), 2 * time.Millisecond},
		{"a line that is no bucket", bucket(`"x"} 5`, `"0.001"} ?`, `"0.002"} 5`, `"+Inf"} 5`), 2 * time.Millisecond},
	} {
		if got, ok := SyncP99(strings.NewReader(tc.text)); got != tc.want || ok != (tc.want != 0) {
			t.Errorf("%s: %v, %v; want %v", tc.name, got, ok, tc.want)
		}
	}
}

// Members that do not answer, or without that metric, are left out.
func TestSyncTimes(t *testing.T) {
	var e config.Etcd
	for _, text := range []string{`etcd_disk_wal_fsync_duration_seconds_bucket{le="0.004"} 3`, "nothing"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				_, _ = w.Write([]byte(text + "\n"))
			}
		}))
		defer s.Close()
		e.Endpoints = append(e.Endpoints, s.URL)
	}
	e.Endpoints = append(e.Endpoints, "http://localhost:1")
	got := SyncTimes(t.Context(), e)
	if len(got) != 1 || got["127.0.0.1"] != 4*time.Millisecond {
		t.Errorf("got %v", got)
	}
}
