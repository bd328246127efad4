package cluster

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/certs/reload"
)

// maxKeys bounds a keyring: a packet under an unknown key is tried with each.
const maxKeys = 8

// ParseKeys reads a keyring: one key a line, 16, 24 or 32 bytes in standard
// base64. The first is the one that messages are sealed with; all of them open
// messages. Empty lines and lines that begin with # are skipped.
//
// To change a key without losing a message, give every node the new one as the
// last line, then as the first, then alone; each step to all nodes before the next.
func ParseKeys(file []byte) ([][]byte, error) {
	var keys [][]byte
	lines := bufio.NewScanner(bytes.NewReader(file))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil { // The error would quote a part of the key.
			return nil, fmt.Errorf("line %d is not base64: "+
				"write keys made with \"allocator gossip keygen\", one a line", n)
		}
		if err := memberlist.ValidateKey(key); err != nil {
			return nil, fmt.Errorf("line %d has a key of %d bytes: use 16, 24 or 32", n, len(key))
		}
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
			return nil, fmt.Errorf("line %d repeats an earlier key: remove it", n)
		}
		keys = append(keys, key)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("the file has no key: add one made with \"allocator gossip keygen\"")
	}
	if len(keys) > maxKeys {
		return nil, fmt.Errorf("the file has %d keys, at most %d are allowed: remove old ones", len(keys), maxKeys)
	}
	return keys, nil
}

// keyID names a key in logs without giving it away.
func keyID(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// Keys are the keys of gossip, from a file that is read again when it changes. Its methods
// are safe for concurrent use.
type Keys struct {
	*reload.Value[[][]byte]
	ring    *memberlist.Keyring
	ciphers atomic.Pointer[[]cipher.AEAD] // They cost more to make than to use.
}

// NewKeys reads the file, see [ParseKeys]. Its errors name the setting, and quote no key.
func NewKeys(path string, log *slog.Logger) (*Keys, error) {
	const setting = "gossip.key-file"
	k := &Keys{}
	var err error
	k.Value, err = reload.New(reload.Config[[][]byte]{
		What:   "gossip_keys",
		Files:  []reload.File{{Name: setting, Path: path, Secret: true}},
		Logger: log,
		Parse: func(contents [][]byte) ([][]byte, error) {
			keys, err := ParseKeys(contents[0])
			if err != nil {
				return nil, fmt.Errorf("%s (%s): %w", setting, path, err)
			}
			return keys, nil
		},
		Changed: func(keys [][]byte) {
			_ = rotate(k.ring, keys) // It never fails, since the keys are valid.
			k.prepare(keys)
			log.Info("gossip keys changed", "keys", len(keys), "primary", keyID(keys[0]))
		},
	})
	if err != nil {
		return nil, err
	}
	k.ring, err = memberlist.NewKeyring(k.Get(), k.Get()[0])
	if err != nil {
		return nil, err
	}
	k.prepare(k.Get())
	return k, nil
}

// prepare makes the ciphers of valid keys.
func (k *Keys) prepare(keys [][]byte) {
	var ciphers []cipher.AEAD
	for _, key := range keys {
		block, err := aes.NewCipher(key)
		if err == nil {
			var gcm cipher.AEAD
			gcm, err = cipher.NewGCM(block)
			ciphers = append(ciphers, gcm)
		}
		if err != nil {
			panic(fmt.Sprintf("cluster: a valid key makes no cipher: %v", err))
		}
	}
	k.ciphers.Store(&ciphers)
}

// rotate makes ring hold the keys, the first as primary: it installs what is
// new, then uses the first, then removes what is gone, so that at no moment a
// message is sealed with a key the ring does not open.
func rotate(ring *memberlist.Keyring, keys [][]byte) error {
	for _, k := range keys {
		if err := ring.AddKey(k); err != nil {
			return err
		}
	}
	if err := ring.UseKey(keys[0]); err != nil {
		return err
	}
	for {
		have := ring.GetKeys()
		if len(have) == len(keys) {
			return nil
		}
		// Removing any key but the last moves the ones behind it in memory that
		// packets are being opened from at this moment. So those to go are brought
		// to the end, by using each one to stay and the primary last.
		last := have[len(have)-1]
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, last) }) {
			for _, k := range slices.Backward(keys) {
				if err := ring.UseKey(k); err != nil {
					return err
				}
			}
			continue
		}
		if err := ring.RemoveKey(last); err != nil {
			return err
		}
	}
}
