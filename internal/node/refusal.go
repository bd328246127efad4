package node

import (
	"fmt"
	"time"
)

// Reason is why a request was refused. The values are the names of the
// reasons in allocator.proto, without their prefix; a test holds the two lists
// together.
type Reason string

// The reasons, in the order in which they take precedence. Identity comes before
// content: an unauthenticated client learns nothing from how a request is read.
const (
	Unauthenticated  Reason = "UNAUTHENTICATED"
	PermissionDenied Reason = "PERMISSION_DENIED"
	RateLimited      Reason = "RATE_LIMITED"
	InvalidCount     Reason = "INVALID_COUNT"
	InvalidFormat    Reason = "INVALID_FORMAT"
	InvalidID        Reason = "INVALID_ID"
	WorkersOff       Reason = "WORKERS_OFF"
	Draining         Reason = "DRAINING"
	HistoryRewound   Reason = "HISTORY_REWOUND"
	ClockSkew        Reason = "CLOCK_SKEW"
	ClockUnverified  Reason = "CLOCK_UNVERIFIED"
	Starting         Reason = "STARTING"
	NoSID            Reason = "NO_SID"
	AfterTooFar      Reason = "AFTER_TOO_FAR"
	ClockRegression  Reason = "CLOCK_REGRESSION"
	EntropyOverflow  Reason = "ENTROPY_OVERFLOW"
	WindowExhausted  Reason = "WINDOW_EXHAUSTED"
	CallerClock      Reason = "CALLER_CLOCK"
	UnknownWorker    Reason = "UNKNOWN_WORKER"
	WorkerQuota      Reason = "WORKER_QUOTA"
	NoWorker         Reason = "NO_WORKER"
	EtcdUnavailable  Reason = "ETCD_UNAVAILABLE"
)

// Reasons lists every reason, in order of precedence.
var Reasons = []Reason{
	Unauthenticated, PermissionDenied, RateLimited, InvalidCount, InvalidFormat, InvalidID, WorkersOff,
	Draining, HistoryRewound, ClockSkew, ClockUnverified, Starting, NoSID,
	AfterTooFar, ClockRegression, EntropyOverflow, WindowExhausted,
	CallerClock, UnknownWorker, WorkerQuota, NoWorker, EtcdUnavailable,
}

// Refusal is the error of a request that issued nothing and changed nothing.
type Refusal struct {
	Reason  Reason
	Message string // for a person: what is wrong and what to do
	// RetryAfter is the time after which the same request can succeed; 0: waiting
	// does not help.
	RetryAfter time.Duration
	// Metadata holds the values behind the message, for a program.
	Metadata map[string]string
}

// Error returns the reason and the message.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

// Is makes errors.Is(err, &Refusal{Reason: x}) ask for the reason alone.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Reason == r.Reason
}

func refuse(reason Reason, retry time.Duration, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, RetryAfter: retry, Message: fmt.Sprintf(format, args...)}
}

// with adds metadata, given as key, value, key, value.
func (r *Refusal) with(pairs ...string) *Refusal {
	r.Metadata = make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Metadata[pairs[i]] = pairs[i+1]
	}
	return r
}
