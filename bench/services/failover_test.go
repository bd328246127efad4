package services

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestOutageOf: times without IDs count from the kill, and IDs are repeated or lost whenever they came.
func TestOutageOf(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		answers []answer
		dense   bool
		want    outage
	}{
		"no answer":    {want: outage{lost: -1}},
		"a gap before": {[]answer{{1 * ms, 1}, {90 * ms, 2}, {101 * ms, 3}}, true, outage{gap: ms}},
		"a gap":        {[]answer{{150 * ms, 4}, {99 * ms, 1}, {101 * ms, 2}, {103 * ms, 3}}, true, outage{gap: 47 * ms}},
		"repeated": {[]answer{{1 * ms, 1}, {2 * ms, 2}, {101 * ms, 2}, {102 * ms, 1}}, true,
			outage{gap: ms, repeated: 2}},
		"lost":  {[]answer{{1 * ms, 5}, {101 * ms, 38}, {102 * ms, 40}}, true, outage{gap: ms, lost: 33}},
		"apart": {[]answer{{1 * ms, 5}, {101 * ms, 380}}, false, outage{gap: ms, lost: -1}},
	} {
		if got := outageOf(tc.answers, 100*ms, 0, tc.dense); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestObserve: callers notice how long a service that counts is away, and one that is not well before the kill, or
// never after it, is no result.
func TestObserve(t *testing.T) {
	down := errors.New("down")
	for name, tc := range map[string]struct {
		away   time.Duration
		before error
		want   string
	}{
		"away":   {away: 300 * time.Millisecond},
		"before": {before: down, want: "failed before the kill: down"},
		"never":  {away: time.Hour, want: "no ID came within 1m0s of the kill: down"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var id, until atomic.Int64
				began := time.Now()
				got, err := observe(t.Context(), replicaSet{
					dense: true,
					next: func(context.Context) (int64, error) {
						if time.Sleep(time.Millisecond); time.Since(began) < time.Duration(until.Load()) {
							return 0, down
						}
						return id.Add(1), tc.before
					},
					kill: func() error { until.Store(int64(time.Since(began) + tc.away)); return nil },
				})
				if tc.want != "" {
					if err == nil || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("%+v, %v, want %q", got, err, tc.want)
					}
					return
				}
				// A call of each caller begins every 3 ms.
				off := got.gap - tc.away
				if err != nil || off.Abs() > 4*time.Millisecond || got.failed < 95*failoverCallers ||
					got.failed > 105*failoverCallers || got.repeated != 0 || got.lost != 0 {
					t.Errorf("%+v, %v", got, err)
				}
			})
		})
	}
}
