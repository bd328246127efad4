package records

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Keys is the prefix of a space: "/<root>/<space>/", or nothing where a space is alone.
type Keys string

// The names below the prefix.
const (
	config   = "config"
	era      = "era"
	accepted = "accepted-time"
	expired  = "expired" // the latest hold that another node has ended
	mark     = "mark"
	acts     = "act/"
	nodes    = "node/"
	holders  = "holder/"
	windows  = "window/"
	ledgers  = "ledger/"
)

func (k Keys) of(name string) string { return string(k) + name }

// Config, Era, Mark, Node, Holder, Window and Ledger return the key of a record.
func (k Keys) Config() string               { return k.of(config) }
func (k Keys) Era() string                  { return k.of(era) }
func (k Keys) Mark() string                 { return k.of(mark) }
func (k Keys) Node(i lease.Instance) string { return string(k) + nodes + string(i) }
func (k Keys) Holder(sid flake.SID) string  { return string(k) + holders + sidName(sid) }
func (k Keys) Window(sid flake.SID) string  { return string(k) + windows + sidName(sid) }
func (k Keys) Ledger(sid flake.SID, term int64) string {
	return k.ledgerOf(sid) + fmt.Sprintf("%020d", term)
}

// IsAct reports whether a key has an act of an operator.
func (k Keys) IsAct(key string) bool { return strings.HasPrefix(key, k.of(acts)) }

func (k Keys) ledgerOf(sid flake.SID) string { return string(k) + ledgers + sidName(sid) + "/" }

// Watched returns the range [first, end) that has the accepted time, config, era,
// all holders, the mark and all registrations. The ledger is between them: a line of it comes with a holder.
func (k Keys) Watched() (first, end string) { return k.of(accepted), after(k.of(nodes)) }

// after returns the key after all that have a prefix, which ends with a slash.
func after(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
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

// sidUnder returns the sid of a name under prefix.
func sidUnder(name, prefix string) (flake.SID, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	return parseSID(rest)
}

// cutNonEmpty returns what follows prefix in name, if anything does.
func cutNonEmpty(name, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	return rest, ok && rest != ""
}
