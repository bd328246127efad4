package access

import (
	"errors"
	"net/url"
	"strings"
)

// Scope is what a call requires and a token grants.
type Scope uint8

// The scopes. Admin includes the others.
const (
	Issue  Scope = iota // issue IDs
	Read                // decode IDs, see the cluster
	Worker              // hold worker numbers
	Admin               // change what the node does
	numScopes
)

var scopeNames = [numScopes]string{"issue", "read", "worker", "admin"}

// String returns the scope's name in a token file.
func (s Scope) String() string { return scopeNames[s] }

// scopes is a set of them, a bit for each.
type scopes uint8

const allScopes scopes = 1<<numScopes - 1

func (s scopes) has(one Scope) bool { return s&(1<<one) != 0 }

// check returns ErrPermissionDenied if one is not in s.
func (s scopes) check(one Scope) error {
	if !s.has(one) {
		return ErrPermissionDenied
	}
	return nil
}

// String returns the names, comma-separated; only "admin" if it is one of them.
func (s scopes) String() string {
	if s.has(Admin) {
		return Admin.String()
	}
	var names []string
	for one := range numScopes {
		if s.has(one) {
			names = append(names, one.String())
		}
	}
	return strings.Join(names, ",")
}

// ErrScope says that a list of scopes is not one.
var ErrScope = errors.New("access: wrong scopes: use issue, read, worker or admin, comma-separated, each at most once")

func parseScopes(s string) (scopes, error) {
	var set scopes
	for name := range strings.SplitSeq(s, ",") {
		one := Scope(0)
		for one < numScopes && scopeNames[one] != name {
			one++
		}
		if one == numScopes || set&(1<<one) != 0 {
			return 0, ErrScope
		}
		set |= 1 << one
	}
	if set.has(Admin) {
		set = allScopes
	}
	return set, nil
}

// ScopeURI is what a scope has in front of its name in a URI of a client certificate
// (subjectAltName), such as urn:allocator:scope:admin.
const ScopeURI = "urn:" + scopeURN

const scopeURN = "allocator:scope:"

// certificateScopes returns the scopes that the URIs of a certificate name; ok is false if
// they name none. A scope that does not exist grants nothing.
func certificateScopes(uris []*url.URL) (set scopes, ok bool) {
	for _, u := range uris {
		name, found := strings.CutPrefix(u.Opaque, scopeURN)
		if u.Scheme != "urn" || !found {
			continue
		}
		ok = true
		if one, err := parseScopes(name); err == nil {
			set |= one
		}
	}
	return set, ok
}
