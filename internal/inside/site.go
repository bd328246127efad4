package inside

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Site is a member where it runs, in a node or in a pod of the chart: who it is, where its data is, what its etcd runs
// with, and how it calls the others. Nobody changes it.
type Site struct {
	Dir  Dir
	Own  member.Own // Owner says the rest, from the directory.
	Etcd member.Run // Runs says the rest, from the directory.
	// Token belongs to the cluster that Own.Join begins; "": it follows from the list.
	Token string
	// Peer and Client return the URLs of a member.
	Peer, Client func(host string) string
	// TLS returns what members are called with, from the files as they are now; nil: no TLS.
	TLS func() (*tls.Config, error)
	// Root returns what changes members are made with, without the endpoints.
	Root func() (etcdstore.Config, error)
}

// client is the URL that clients call this member at.
func (s *Site) client() string { return s.Client(s.Own.Host) }

// founding returns the list and the token with which the members of the list begin a cluster.
func (s *Site) founding() (initial, token string) {
	initial = Initial(s.Own.Join, s.Peer)
	return initial, cmp.Or(s.Token, fmt.Sprintf("allocator-%x", sha256.Sum256([]byte(initial)))[:26])
}

// intends reports whether the directory says that the member begins the cluster.
func (s *Site) intends() (bool, error) {
	initial, token := s.founding()
	return s.Dir.Intends(s.Own.Peer, initial, token)
}

// Owner returns who decides how to start with data; nil: without any.
func (s *Site) Owner(data *member.Data) (own member.Own, err error) {
	own = s.Own
	initial, token := s.founding()
	if own.Founds, err = ClusterOf(initial, token); err != nil {
		return own, fmt.Errorf("list of members: %w", err)
	}
	switch {
	case data == nil:
		own.Intends, err = s.intends()
	case data.Restored:
		if own.Founds, err = ClusterOf(data.Initial, data.Token); err != nil {
			return own, fmt.Errorf("the restored data: %w", err)
		}
		own = member.OfRestored(own, *data, own.Founds)
	}
	return own, err
}

// Dial connects to members of the cluster.
func (s *Site) Dial(clients []string) (*etcdstore.Group, error) {
	c, err := s.Root()
	if err != nil {
		return nil, err
	}
	c.Endpoints = clients
	return etcdstore.OpenGroup(c)
}

// Caller returns what calls other members as a member.
func (s *Site) Caller() (*http.Client, error) {
	c, err := s.TLS()
	var from net.Dialer
	if ip := net.ParseIP(s.Etcd.IP); ip != nil && !ip.IsLoopback() && !ip.IsUnspecified() {
		// etcd compares the address of the caller with its certificate, and calls from there too.
		from.LocalAddr = &net.TCPAddr{IP: ip}
	}
	return &http.Client{Transport: &http.Transport{
		DialContext:       from.DialContext,
		TLSClientConfig:   c,
		DisableKeepAlives: true,
	}}, err
}

// AskAt asks the URL of a member what is there.
func (s *Site) AskAt(ctx context.Context, peer string) member.Answer {
	client, err := s.Caller()
	if err != nil {
		return member.Answer{Err: err}
	}
	return askOne(ctx, client, peer)
}

// askOne asks one address what is there.
func askOne(ctx context.Context, client *http.Client, base string) (a member.Answer) {
	code, body, _, err := meet.Get(ctx, client, base+meetPath)
	switch {
	case err != nil:
		return member.Answer{Err: err}
	case code == http.StatusOK:
		if a.Waiting, a.Err = meet.ParseWaiting(body); a.Err == nil {
			a.Skew = time.Until(a.Waiting.Now)
		}
		return a
	}
	code, body, header, err := meet.Get(ctx, client, base+membersPath)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("HTTP status %d: no etcd inside is there", code)
	}
	if err == nil {
		a.Members, err = meet.ParseMembers(body)
	}
	if err == nil {
		a.Cluster, err = strconv.ParseUint(header.Get(clusterID), 16, 64)
	}
	if err != nil {
		return member.Answer{Err: err}
	}
	return a
}

// Write carries out Intend or Discard.
func (s *Site) Write(step member.Step) error {
	if step.Action == member.Intend {
		return s.Dir.Note(s.begins(step))
	}
	return s.SetAside("removed")
}

// Take returns what the directory is to say before etcd starts. It gets the last step of the start, and the data that
// the machine has then; nil: none.
func (s *Site) Take(step member.Step, data *member.Data) (*member.Data, error) {
	switch {
	case step.Action == member.Start:
		return data, nil
	case step.Action == member.Begin && data != nil:
		data.Restored = false // Etcd runs in it from now on.
		return data, nil
	}
	// What is left of data that was lost would be started from.
	return s.begins(step), s.SetAside("lost")
}

// begins returns what the directory says of a new member.
func (s *Site) begins(step member.Step) *member.Data {
	d := &member.Data{
		Host:     s.Own.Host,
		Peer:     s.Own.Peer,
		Version:  etcdstore.ServerVersion(),
		Initial:  step.Initial,
		Existing: step.Action == member.Join,
	}
	if !d.Existing {
		d.Initial, d.Token = s.founding()
	}
	return d
}

// SetAside keeps the data that is there under another name. The volume of a pod has room for one copy: those before are
// deleted, and what has neither a log nor a database was never used.
func (s *Site) SetAside(why string) error {
	if s.Own.Replaces {
		has, err := meet.HasLog(s.Dir.Data())
		if err == nil && !has {
			if _, err = os.Stat(s.Dir.Database()); errors.Is(err, fs.ErrNotExist) {
				return os.RemoveAll(s.Dir.Data())
			}
		}
		if err != nil {
			return err
		}
		for _, old := range s.Dir.Copies() {
			if err := os.RemoveAll(old.Path); err != nil {
				return err
			}
		}
	}
	return cmp.Or(s.Dir.setAside(why, time.Now()), durable.SyncDir(string(s.Dir)))
}

// Runs returns what etcd is to run with, as the directory says how it began.
func (s *Site) Runs(data member.Data) member.Run {
	r := s.Etcd
	r.Version, r.Name, r.Client, r.Peer = etcdstore.ServerVersion(), s.Own.Host, s.client(), s.Own.Peer
	r.Initial, r.Token, r.Existing = data.Initial, data.Token, data.Existing
	return r
}

// Look asks the member who it is, a majority who the members are, and each of them how it is. A learner answers nothing
// about others. The error is why the member, or a majority, did not answer.
func (s *Site) Look(ctx context.Context) (m member.Status, list []member.Member, all []member.Status, err error) {
	err = s.Call(ctx, []string{s.client()}, func(ctx context.Context, g *etcdstore.Group) (err error) {
		if m = g.Ask(ctx, s.client())[0]; m.Err != nil || m.Learner {
			return m.Err
		}
		if _, list, err = g.List(ctx); err == nil {
			all = g.Status(ctx, list)
		}
		return err
	})
	return m, list, all, err
}

// Settle has the directory say which member this is, and who the members are, if a list of them is known. Only then it
// promotes a learner: a member that votes has it on disk which one it is. A voter tells the members its address, if
// they have another one: nobody may have answered before it started, or there is no other member.
//
// It returns what the directory said before, and whether it has changed; ErrDir if it does not say it durably.
func (s *Site) Settle(ctx context.Context, m member.Status, list []member.Member) (before *member.Data, changed bool,
	err error) {
	if before, err = s.Dir.read(); err != nil {
		return nil, false, err
	}
	if before == nil {
		return nil, false, s.Dir.unfit("has no member.json any more")
	}
	now := before.Noted(m, list, s.Own.Host, s.Own.Peer)
	if changed = !reflect.DeepEqual(now, *before); changed {
		if err := s.Dir.Note(&now); err != nil {
			return before, false, err
		}
	}
	switch {
	case m.Learner: // It does not take the call itself.
		var others []string
		for _, host := range s.Own.Join {
			if host != s.Own.Host {
				others = append(others, s.Client(host))
			}
		}
		err = s.Call(ctx, others, func(ctx context.Context, g *etcdstore.Group) error { return g.Promote(ctx, m.ID) })
	case member.OtherAddress(list, m.ID, s.Own.Peer) != "":
		err = s.Call(ctx, []string{s.client()}, func(ctx context.Context, g *etcdstore.Group) error {
			return g.Move(ctx, m.ID, s.Own.Peer)
		})
	}
	return before, changed, err
}
