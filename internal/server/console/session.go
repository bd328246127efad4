package console

import (
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

const (
	sessionFor = 12 * time.Hour
	// maxSessions is how many there are at a time, of all callers, and maxOwn of one caller.
	maxSessions = 256
	maxOwn      = 16

	planFor = 5 * time.Minute
	// maxPlans is how many shown plans there are at a time, of all callers.
	maxPlans = 16
)

// kept has values for some time, each under a key that a browser has: the caller of a session,
// without its token, or a plan that was shown. It ends with the process.
type kept[T any] struct {
	lasts    time.Duration
	all, own int // It has at most so many values, and so many of one owner: the oldest ends for a new one.

	mu   sync.Mutex // guards list
	list []entry[T] // The oldest is first.
}

type entry[T any] struct {
	key, owner string
	value      T
	began      clock.Mono
}

// add returns the key of a value that is kept from now on. A key is random, so it is of use at
// this node alone, and only until the value ends: browsers send cookies to every port of a host.
func (k *kept[T]) add(value T, owner string, now clock.Mono) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(now)
	own, oldest := 0, 0
	for i, e := range slices.Backward(k.list) {
		if e.owner == owner {
			own, oldest = own+1, i
		}
	}
	switch {
	case own >= k.own:
		k.list = slices.Delete(k.list, oldest, oldest+1)
	case len(k.list) >= k.all:
		k.list = slices.Delete(k.list, 0, 1)
	}
	key := rand.Text()
	k.list = append(k.list, entry[T]{key, owner, value, now})
	return key
}

// get returns the value of a key, if it is kept.
func (k *kept[T]) get(key string, now clock.Mono) (value T, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(now)
	for _, e := range k.list {
		if e.key == key {
			return e.value, true
		}
	}
	return value, false
}

// end ends a value, and reports whether it was kept until now.
func (k *kept[T]) end(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.list)
	k.list = slices.DeleteFunc(k.list, func(e entry[T]) bool { return e.key == key })
	return len(k.list) < before
}

// expire ends what is too old. k.mu is held.
func (k *kept[T]) expire(now clock.Mono) {
	k.list = slices.DeleteFunc(k.list, func(e entry[T]) bool { return now.Sub(e.began) >= k.lasts })
}

// cookieName returns the name of the cookie of a node. Nodes on other ports of the same host
// have other sessions.
func (c *Console) cookieName() string {
	if c.cfg.Node == nil {
		return cookie
	}
	id, _, _ := strings.Cut(string(c.cfg.Node.Stats().Instance), "-")
	return cookie + "_" + id
}
