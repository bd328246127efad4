package inside

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

// syncMetric is the histogram of how long the disk takes to store an entry of the log.
const syncMetric = "etcd_disk_wal_fsync_duration_seconds_bucket{"

// SyncTimes asks the members for the time within which 99 of 100 entries were on their disks since
// they started, by host. One that does not answer is left out.
func SyncTimes(ctx context.Context, e config.Etcd) map[string]time.Duration {
	c, err := tlsOf(e.TLS)
	if err != nil {
		return nil
	}
	transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	if path := e.Socket(); path != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	client := &http.Client{Transport: transport}
	out := map[string]time.Duration{}
	var mu sync.Mutex // guards out
	var all sync.WaitGroup
	for _, url := range e.Addresses() {
		all.Go(func() {
			at := url
			if e.Socket() != "" {
				at = "http://localhost"
			}
			_, page, _, err := meet.Get(ctx, client, at+"/metrics")
			if err != nil {
				return
			}
			if p99, ok := SyncP99(bytes.NewReader(page)); ok {
				mu.Lock()
				defer mu.Unlock()
				out[member.HostOf(url)] = p99
			}
		})
	}
	all.Wait()
	return out
}

// SyncP99 returns the upper bound of the bucket that holds the 99th percentile of etcd's disk
// syncs, from its metrics as text. It is false if there are none.
func SyncP99(metrics io.Reader) (time.Duration, bool) {
	var bounds, counts []float64
	for in := bufio.NewScanner(metrics); in.Scan(); {
		rest, ok := strings.CutPrefix(in.Text(), syncMetric)
		if !ok {
			continue
		}
		label, count, _ := strings.Cut(rest, "} ")
		bound, err := strconv.ParseFloat(strings.Trim(strings.TrimPrefix(label, "le="), `"`), 64)
		n, err2 := strconv.ParseFloat(count, 64)
		if err == nil && err2 == nil {
			bounds, counts = append(bounds, bound), append(counts, n)
		}
	}
	if len(counts) == 0 || counts[len(counts)-1] <= 0 {
		return 0, false
	}
	for i, n := range counts {
		if n >= 0.99*counts[len(counts)-1] {
			if math.IsInf(bounds[i], 1) && i > 0 {
				return time.Duration(bounds[i-1] * float64(time.Second)), true
			}
			return time.Duration(bounds[i] * float64(time.Second)), true
		}
	}
	return 0, false
}
