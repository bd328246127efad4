package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"
)

// Errors for which a node is kept out. The first two are also what a join
// returns on the side that wanted in.
var (
	ErrOtherPool    = errors.New("cluster: node of another pool")
	ErrOtherVersion = errors.New("cluster: node uses another version of the echo")
	errAnnouncement = errors.New("cluster: malformed announcement")
	errImpostor     = errors.New("cluster: the instance is registered by a node with another name or address")
)

const (
	poolHashSize = 16
	announceSize = 1 + poolHashSize + 16
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

// announcement is what a node says of itself when it joins. The version is first, as in
// an echo. Addresses are not in it: a node registers them in the store.
//
//	version:1 pool:16 instance:16
type announcement struct {
	Pool     [poolHashSize]byte
	Instance uuid.UUID
}

func (a announcement) encode() []byte {
	b := append([]byte{echoVersion}, a.Pool[:]...)
	return append(b, a.Instance[:]...)
}

// decodeAnnouncement reads what encode wrote. It returns ErrOtherVersion or
// errAnnouncement.
func decodeAnnouncement(b []byte) (a announcement, err error) {
	switch {
	case len(b) == 0:
		return a, fmt.Errorf("%w: empty", errAnnouncement)
	case b[0] != echoVersion:
		return a, fmt.Errorf("%w: %d, this binary speaks %d", ErrOtherVersion, b[0], echoVersion)
	case len(b) != announceSize:
		return a, fmt.Errorf("%w: %d bytes", errAnnouncement, len(b))
	}
	r := reader(b[1:])
	copy(a.Pool[:], r.take(poolHashSize))
	a.Instance = r.uuid()
	return a, nil
}

// admit reads what a node announces. It returns ErrOtherPool, ErrOtherVersion or
// errAnnouncement if it is not one of ours, and errImpostor if the instance is another's.
func (c *Cluster) admit(n *memberlist.Node) (uuid.UUID, error) {
	a, err := decodeAnnouncement(n.Meta)
	switch {
	case err != nil:
		return uuid.UUID{}, err
	case a.Pool != c.pool:
		return uuid.UUID{}, ErrOtherPool
	}
	node, ok := strings.CutSuffix(n.Name, memberName("", a.Instance))
	if !ok || !validNode(node) {
		return uuid.UUID{}, fmt.Errorf("%w: name %.64q with instance %s", errAnnouncement, n.Name, a.Instance)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.table.impostor(a.Instance, n) || a.Instance == c.instance && n.Name != c.name {
		return a.Instance, errImpostor
	}
	return a.Instance, nil
}
