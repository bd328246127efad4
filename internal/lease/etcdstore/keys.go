package etcdstore

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// ErrName is returned for a root or a space that is not 1 to 63 of a–z, 0–9, dot,
// dash and underscore, the first a letter or digit.
var ErrName = errors.New("etcdstore: not a valid name")

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// keys is the prefix of a space, "/<root>/<space>/".
type keys string

func newKeys(root, space string) (keys, error) {
	for _, name := range []string{root, space} {
		if !nameForm.MatchString(name) {
			return "", fmt.Errorf("%w: %.80q", ErrName, name)
		}
	}
	return keys("/" + root + "/" + space + "/"), nil
}

func (k keys) config() string   { return string(k) + "config" }
func (k keys) era() string      { return string(k) + "era" }
func (k keys) accepted() string { return string(k) + "accepted-time" }
func (k keys) mark() string     { return string(k) + "mark" }
func (k keys) nodes() string    { return string(k) + "node/" }
func (k keys) holders() string  { return string(k) + "holder/" }
func (k keys) windows() string  { return string(k) + "window/" }
func (k keys) ledgers() string  { return string(k) + "ledger/" }

func (k keys) node(i lease.Instance) string  { return k.nodes() + string(i) }
func (k keys) holder(sid flake.SID) string   { return k.holders() + sidName(sid) }
func (k keys) window(sid flake.SID) string   { return k.windows() + sidName(sid) }
func (k keys) ledgerOf(sid flake.SID) string { return k.ledgers() + sidName(sid) + "/" }
func (k keys) ledger(sid flake.SID, term int64) string {
	return k.ledgerOf(sid) + fmt.Sprintf("%020d", term)
}

// watched returns the range [first, end) that has the accepted time, config, era,
// all holders, the mark and all registrations. The ledger is between them: a line of it comes with a holder.
func (k keys) watched() (first, end string) {
	return k.accepted(), clientv3.GetPrefixRangeEnd(k.nodes())
}

func sidName(sid flake.SID) string { return strconv.FormatUint(uint64(sid), 10) }

// parseSID reads a sid as sidName writes it: no sign, no leading zero.
func parseSID(s string) (flake.SID, bool) {
	n, err := strconv.ParseUint(s, 10, 22)
	if err != nil || sidName(flake.SID(n)) != s {
		return 0, false
	}
	return flake.SID(n), true
}

// sidUnder returns the sid of a key under prefix.
func sidUnder(key, prefix string) (flake.SID, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return 0, false
	}
	return parseSID(rest)
}
