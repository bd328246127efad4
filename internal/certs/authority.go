package certs

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/flakelease/allocator/internal/durable"
)

// Authority is a directory with an authority of one's own: ca.pem, ca.key, and for each host a
// certificate HOST.pem with HOST.key.
type Authority struct {
	Dir string
	Now time.Time
}

// authorityFor is the time of an authority, which outlives what it signed.
const authorityFor = 10 * 365 * 24 * time.Hour

// ErrAuthority is an Authority that cannot be used.
var ErrAuthority = errors.New("certificates")

var hostName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// Sign makes the certificates of hosts that have none, and those that end within a tenth of
// lasts; with again all. It makes the authority if there is none. It returns the hosts whose
// certificates it made.
//
// A certificate is for its host, for 127.0.0.1 and for localhost, to serve and to call with. It is marked as
// a member's.
func (a Authority) Sign(hosts []string, lasts time.Duration, again bool) (made []string, err error) {
	for _, h := range hosts {
		if net.ParseIP(h) == nil && !hostName.MatchString(h) || h == "ca" {
			return nil, fmt.Errorf("%w: %q is not a host: write addresses or names without port", ErrAuthority, h)
		}
	}
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return nil, err
	}
	ca, err := a.authority()
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		old, err := Read(a.path(h + ".pem"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return made, err
		}
		if !again && err == nil && old[0].NotAfter.After(a.Now.Add(lasts/10)) {
			continue
		}
		p, err := Issue(ca, h, []string{h, memberURI}, a.Now, lasts-spread(h, lasts))
		if err == nil {
			err = a.write(h, p)
		}
		if err != nil {
			return made, err
		}
		made = append(made, h)
	}
	return made, nil
}

// spread is how much earlier the certificate of a host ends than another's: those that nobody renews do not
// stop all members at once.
func spread(host string, lasts time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(host)) // never fails
	return time.Duration(h.Sum32()%8) * lasts / 100
}

func (a Authority) path(name string) string { return filepath.Join(a.Dir, name) }

// authority returns the authority, and makes it if there is none.
func (a Authority) authority() (*Pair, error) {
	cert, err := os.ReadFile(a.path("ca.pem"))
	if errors.Is(err, fs.ErrNotExist) {
		p, err := Issue(nil, "allocator authority", nil, a.Now, authorityFor)
		if err != nil {
			return nil, err
		}
		return p, a.write("ca", p)
	}
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(a.path("ca.key"))
	if err != nil {
		return nil, fmt.Errorf("%w: %s has an authority without its key: %w", ErrAuthority, a.Dir, err)
	}
	p, err := ParsePair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%w: ca.pem and ca.key of %s: %w", ErrAuthority, a.Dir, err)
	}
	return p, nil
}

// write writes a key and then its certificate, each as a whole.
func (a Authority) write(name string, p *Pair) error {
	for _, f := range []struct {
		name string
		text []byte
		mode fs.FileMode
	}{{name + ".key", p.KeyPEM, 0o600}, {name + ".pem", p.CertPEM, 0o644}} {
		if err := durable.Replace(a.path(f.name), f.mode, durable.From(bytes.NewReader(f.text))); err != nil {
			return err
		}
	}
	return nil
}
