// Package forged makes packets of gossip that no node sends: what whoever has the key can
// say of others. It knows memberlist's wire format, and that of announcements, from outside.
package forged

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/uuid"
	"github.com/hashicorp/go-msgpack/v2/codec"
)

// The kinds of memberlist's messages that are forged here, and what they are packed in.
const (
	kindAlive    = 4
	kindDead     = 5
	kindCompound = 7
	kindLabel    = 244
)

// MemberName returns the name of a process in gossip.
func MemberName(node, instance string) string { return node + "-" + instance[:8] }

// Left returns the message that a member has left, as if it said so itself. It counts if
// incarnation is at least the member's.
func Left(member string, incarnation uint32) []byte {
	return encode(kindDead, struct {
		Incarnation uint32
		Node        string
		From        string
	}{incarnation, member, member})
}

// Alive returns the message that a member lives at an address and announces an instance of
// a pool. It counts if incarnation is above the member's.
func Alive(member string, at netip.AddrPort, pool, instance string, incarnation uint32) []byte {
	sum, id := sha256.Sum256([]byte(pool)), uuid.MustParse(instance)
	meta := append([]byte{1}, sum[:16]...)
	return encode(kindAlive, struct {
		Incarnation uint32
		Node        string
		Addr        []byte
		Port        uint16
		Meta        []byte
		Vsn         []uint8
	}{
		Incarnation: incarnation,
		Node:        member,
		Addr:        at.Addr().AsSlice(),
		Port:        at.Port(),
		Meta:        append(meta, id[:]...),
		Vsn:         []uint8{1, 5, 5, 1, 1, 1},
	})
}

func encode(kind byte, message any) []byte {
	b := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(b, &codec.MsgpackHandle{}).Encode(message); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// Packet packs messages for nodes with a label, sealed by a key if there is one. They are
// read in their order, with nothing in between.
func Packet(label string, key []byte, messages ...[]byte) ([]byte, error) {
	body := []byte{kindCompound, byte(len(messages))}
	for _, m := range messages {
		body = binary.BigEndian.AppendUint16(body, uint16(len(m)))
	}
	for _, m := range messages {
		body = append(body, m...)
	}
	head := append([]byte{kindLabel, byte(len(label))}, label...)
	if key == nil {
		return append(head, body...), nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("seal a packet: %w", err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("seal a packet: %w", err)
	}
	nonce := make([]byte, gcm.NonceSize())
	_, _ = rand.Read(nonce) // It never fails.
	head = append(append(head, 1), nonce...)
	return gcm.Seal(head, nonce, body, []byte(label)), nil
}
