package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Limits of a token file, so that the lookup of a token stays cheap.
const (
	MaxTokens    = 1024
	MaxTokenFile = 256 << 10 // bytes
	MaxWorkers   = 1024      // A token may hold no more workers: no space has more sids.
)

// Errors of ParseTokens and Tokens.Problem, in a *LineError where they are of one line.
var (
	ErrFields = errors.New("access: wrong number of fields: write a name, scopes and sha256:HEX, separated by " +
		"spaces, and workers=N if it may hold that many")
	ErrName = errors.New("access: wrong name: use up to 63 characters of a-z, 0-9, '.', '_' and '-', and begin " +
		"with a letter or digit")
	ErrHash = errors.New("access: the third field is not sha256: and 64 hex digits: make the line with " +
		"\"allocator token new\"")
	ErrWorkers  = fmt.Errorf("access: wrong number of workers: write workers=1 to workers=%d", MaxWorkers)
	ErrTwice    = errors.New("access: the token is also in an earlier line: remove one of them")
	ErrTooMany  = fmt.Errorf("access: more than %d tokens: remove some", MaxTokens)
	ErrTooLarge = fmt.Errorf("access: the token file has more than %d bytes: check that it is the right file",
		MaxTokenFile)
	ErrEmpty = errors.New("access: the token file has no token, so every call is rejected: add one with " +
		"`allocator token new`")
)

// LineError is an error in a line of a token file. It quotes nothing of the line, which
// may contain a token by mistake.
type LineError struct {
	Line int // from 1
	Err  error
	More int // further lines with errors
}

// Error names the line.
func (e *LineError) Error() string {
	if e.More > 0 {
		return fmt.Sprintf("line %d and %d more: %v", e.Line, e.More, e.Err)
	}
	return fmt.Sprintf("line %d: %v", e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// Tokens are the accepted tokens. They do not change.
type Tokens struct {
	entries []entry
	places  map[[sha256.Size]byte]int // The value is the index in entries of the token with this hash.
	problem error
	stale   bool // by Stale
}

type entry struct {
	sum    [sha256.Size]byte
	name   string
	scopes scopes

	workers int // The token may hold this many; 0: as many as other clients.
}

// Len returns how many there are.
func (t *Tokens) Len() int { return len(t.entries) }

// Problem returns what is wrong with the file: a *LineError of the first line that was
// skipped, or ErrEmpty; nil: nothing.
func (t *Tokens) Problem() error { return t.problem }

// Stale returns the tokens of a file that could not be read for too long: none. Whether a
// token was revoked since is unknown, so callers get ErrStale.
func Stale() *Tokens { return &Tokens{stale: true} }

var tokenName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

const (
	hashPrefix    = "sha256:"
	workersPrefix = "workers="
)

// ParseTokens reads a token file: a line for each token, with a name, its scopes,
// the SHA-256 of it in hex, and how many workers it may hold if others than
// worker.per-client. Empty lines and lines that begin with # are
// skipped.
//
//	checkout  issue       sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
//	support   issue,read  sha256:fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9
//	import    worker      sha256:baf34551fecb48acc3da868eb85e1b6dac9de356aa73b5bf1d4d4a4e2a8d1f5d  workers=16
//
// Tokens of one name are one client. To replace a token, keep its old line beside the new
// one until all programs have the new token.
//
// A line with an error is skipped, and Problem reports it: the other lines count all the
// same. Otherwise an error in one line would keep a token valid whose line was removed. A
// file without a valid line has no tokens.
//
// It returns ErrTooLarge.
func ParseTokens(file []byte) (*Tokens, error) {
	if len(file) > MaxTokenFile {
		return nil, ErrTooLarge
	}
	t := &Tokens{places: map[[sha256.Size]byte]int{}}
	var skipped *LineError
	n := 0
	for line := range strings.Lines(string(file)) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if err := t.add(fields); err != nil && skipped == nil {
			skipped = &LineError{Line: n, Err: err}
		} else if err != nil {
			skipped.More++
		}
	}
	switch {
	case skipped != nil:
		t.problem = skipped
	case len(t.entries) == 0:
		t.problem = ErrEmpty
	}
	return t, nil
}

// add adds the token of a line.
func (t *Tokens) add(fields []string) error {
	e, err := parseEntry(fields)
	if err != nil {
		return err
	}
	if _, twice := t.places[e.sum]; twice {
		return ErrTwice
	}
	if len(t.entries) == MaxTokens {
		return ErrTooMany
	}
	t.places[e.sum] = len(t.entries)
	t.entries = append(t.entries, e)
	return nil
}

func parseEntry(fields []string) (e entry, err error) {
	if len(fields) == 4 {
		text, ok := strings.CutPrefix(fields[3], workersPrefix)
		n, err := strconv.Atoi(text)
		if !ok || err != nil || n < 1 || n > MaxWorkers {
			return entry{}, ErrWorkers
		}
		e.workers, fields = n, fields[:3]
	}
	if len(fields) != 3 {
		return entry{}, ErrFields
	}
	if !tokenName.MatchString(fields[0]) {
		return entry{}, ErrName
	}
	e.name = fields[0]
	if e.scopes, err = parseScopes(fields[1]); err != nil {
		return entry{}, err
	}
	digits, ok := strings.CutPrefix(fields[2], hashPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(e.sum)) {
		return entry{}, ErrHash
	}
	if _, err := hex.Decode(e.sum[:], []byte(digits)); err != nil {
		return entry{}, ErrHash
	}
	return e, nil
}

// find returns the entry of a token's hash, or nil. Its time tells nothing of a token: whoever
// could choose hashes by it would have to find tokens for them.
func (t *Tokens) find(sum *[sha256.Size]byte) *entry {
	at, ok := t.places[*sum]
	if !ok {
		return nil
	}
	return &t.entries[at]
}

// tokenPrefix makes tokens recognizable to people and to scanners for leaked secrets.
const tokenPrefix = "allocator_"

// NewToken returns a new token of 130 random bits, and its line of a token file.
// scopes is a comma-separated list.
//
// It returns ErrName or ErrScope.
func NewToken(name, scopeList string) (token, line string, err error) {
	if !tokenName.MatchString(name) {
		return "", "", ErrName
	}
	set, err := parseScopes(scopeList)
	if err != nil {
		return "", "", err
	}
	token = tokenPrefix + rand.Text()
	sum := sha256.Sum256([]byte(token))
	return token, fmt.Sprintf("%s %s %s%x", name, set, hashPrefix, sum), nil
}

// maxToken is the maximum length of a token, in bytes.
const maxToken = 256

// wellFormed reports whether s has only the characters of a bearer token.
//
// Source: RFC 6750, section 2.1 (b64token).
func wellFormed(s string) bool {
	if len(s) > maxToken {
		return false
	}
	s = strings.TrimRight(s, "=")
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("-._~+/", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// Bearer returns the token in the value of an Authorization header. The word
// Bearer is accepted in any case, with any number of spaces after it.
//
// It returns ErrNoToken for an empty value and ErrMalformed for any other that is
// not of this form.
//
// Source: RFC 9110, section 11.4; RFC 6750, section 2.1.
func Bearer(header string) (string, error) {
	if header == "" {
		return "", ErrNoToken
	}
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "bearer") || !wellFormed(token) {
		return "", ErrMalformed
	}
	return token, nil
}
