package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"
)

// Member is what a node announces of itself when it joins.
type Member struct {
	Node     string // the name it was configured with
	Instance string // the UUID of its process, as its registration has it
	GRPC     string // host:port; may be empty
	HTTP     string // host:port; may be empty
	Gossip   string // host:port, as its peers see it
}

// Errors for which a node is kept out. The first two are also what a join
// returns on the side that wanted in.
var (
	ErrOtherPool    = errors.New("cluster: node of another pool")
	ErrOtherVersion = errors.New("cluster: node uses another version of the echo")
	errAnnouncement = errors.New("cluster: malformed announcement")
)

const (
	// maxAddress is the longest host:port that is announced, in bytes; the
	// announcement must stay below memberlist's limit, or it panics.
	maxAddress = 200

	poolHashSize    = 16
	announceMinimum = 1 + poolHashSize + 16 + 1 + 1
)

// memberName is the name of a process in gossip: that of its node and the first
// 8 hex digits of its instance. With the node's name alone, a pod that comes
// back with another address would be refused until the old one is forgotten.
func memberName(node string, instance uuid.UUID) string {
	return node + "-" + instance.String()[:8]
}

// poolHash stands for a pool's UUID in announcements.
func poolHash(pool string) (h [poolHashSize]byte) {
	sum := sha256.Sum256([]byte(pool))
	copy(h[:], sum[:])
	return h
}

// announcement is the part of a Member that memberlist does not carry itself.
// The version is first, as in an echo.
//
//	version:1 pool:16 instance:16 length:1 grpc length:1 http
type announcement struct {
	Pool       [poolHashSize]byte
	Instance   uuid.UUID
	GRPC, HTTP string
}

func (a announcement) encode() []byte {
	b := []byte{echoVersion}
	b = append(b, a.Pool[:]...)
	b = append(b, a.Instance[:]...)
	for _, s := range []string{a.GRPC, a.HTTP} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return b
}

// decodeAnnouncement reads what encode wrote. It returns ErrOtherVersion or
// errAnnouncement.
func decodeAnnouncement(b []byte) (a announcement, err error) {
	if len(b) == 0 {
		return a, fmt.Errorf("%w: empty", errAnnouncement)
	}
	if b[0] != echoVersion {
		return a, fmt.Errorf("%w: %d, this binary speaks %d", ErrOtherVersion, b[0], echoVersion)
	}
	if len(b) < announceMinimum || len(b) > memberlist.MetaMaxSize {
		return a, fmt.Errorf("%w: %d bytes", errAnnouncement, len(b))
	}
	r := reader(b[1:])
	copy(a.Pool[:], r.take(poolHashSize))
	a.Instance = r.uuid()
	for _, to := range []*string{&a.GRPC, &a.HTTP} {
		if len(r) == 0 || len(r) < 1+int(r[0]) {
			return announcement{}, fmt.Errorf("%w: cut short", errAnnouncement)
		}
		s := string(r.take(int(r.u8())))
		if s != "" && !validAddress(s) {
			return announcement{}, fmt.Errorf("%w: address", errAnnouncement)
		}
		*to = s
	}
	if len(r) != 0 {
		return announcement{}, fmt.Errorf("%w: %d bytes too many", errAnnouncement, len(r))
	}
	return a, nil
}

// validAddress reports whether s may be announced: up to 200 visible characters.
func validAddress(s string) bool { return len(s) <= maxAddress && validNode(s) }

// admit reads what a node announces. It returns ErrOtherPool, ErrOtherVersion or
// errAnnouncement if it is not one of ours.
func (c *Cluster) admit(n *memberlist.Node) (Member, uuid.UUID, error) {
	a, err := decodeAnnouncement(n.Meta)
	switch {
	case err != nil:
		return Member{}, uuid.UUID{}, err
	case a.Pool != c.pool:
		return Member{}, uuid.UUID{}, ErrOtherPool
	}
	node, ok := strings.CutSuffix(n.Name, memberName("", a.Instance))
	if !ok || !validNode(node) {
		return Member{}, uuid.UUID{}, fmt.Errorf("%w: name %.64q with instance %s", errAnnouncement, n.Name, a.Instance)
	}
	return Member{
		Node: node, Instance: a.Instance.String(), GRPC: a.GRPC, HTTP: a.HTTP, Gossip: n.Address(),
	}, a.Instance, nil
}
