package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Handle names one acquisition of a sid, and shows that the caller made it. Whoever has
// it can extend and release the worker: it is a secret, which no log, error or metric
// shows.
type Handle struct {
	SID    flake.SID
	Term   int64
	Secret string
}

// Limits of what callers send, in bytes.
const (
	MinSecret = 16
	MaxSecret = 64
	MaxName   = 64
	// maxHandle is that of the longest handle: 22 bits of sid, 63 of term.
	maxHandle = len("w1.") + 7 + 1 + 19 + 1 + MaxSecret
)

// Errors of what callers send. None of them shows a secret.
var (
	ErrHandle = errors.New("the handle is malformed: send the whole of it, as AcquireWorker returned it")
	ErrSecret = fmt.Errorf("the secret is malformed: use %d to %d letters and digits, "+
		"drawn at random for each worker", MinSecret, MaxSecret)
	ErrName = fmt.Errorf("the name is malformed: use 1 to %d bytes of printable text", MaxName)
	ErrID   = errors.New("the ID does not belong to the handle: use the one that was returned with it")
)

// ParseHandle reads what String returns, and nothing else: a handle has one text.
//
// It returns ErrHandle.
func ParseHandle(s string) (Handle, error) {
	parts := strings.Split(s[:min(len(s), maxHandle+1)], ".")
	if len(s) > maxHandle || len(parts) != 4 || parts[0] != "w1" || CheckSecret(parts[3]) != nil {
		return Handle{}, ErrHandle
	}
	// What is no number, or one of another form such as 007, gives another text.
	sid, _ := strconv.ParseUint(parts[1], 10, 22)
	term, _ := strconv.ParseInt(parts[2], 10, 64)
	h := Handle{SID: flake.SID(sid), Term: term, Secret: parts[3]}
	if term < 1 || h.String() != s {
		return Handle{}, ErrHandle
	}
	return h, nil
}

// CheckSecret returns ErrSecret unless s is 16 to 64 ASCII letters and digits.
func CheckSecret(s string) error {
	if len(s) < MinSecret || len(s) > MaxSecret || strings.ContainsFunc(s, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) {
		return ErrSecret
	}
	return nil
}

// CheckName returns ErrName unless a person can be shown name as it is.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName || lease.Printable(name) != name {
		return ErrName
	}
	return nil
}

// String returns the handle as callers send it: w1, the sid, the term and the secret,
// separated by dots.
func (h Handle) String() string { return fmt.Sprintf("w1.%d.%d.%s", h.SID, h.Term, h.Secret) }

// ID returns the part that is no secret, such as 17-4: sid and term.
func (h Handle) ID() string { return fmt.Sprintf("%d-%d", h.SID, h.Term) }

// Instance returns the instance that the records of the worker have. It is derived from
// the secret in one direction: whoever reads etcd cannot make the handle.
func Instance(secret string) lease.Instance {
	sum := sha256.Sum256([]byte(secret))
	return lease.Instance(hex.EncodeToString(sum[:16]))
}
