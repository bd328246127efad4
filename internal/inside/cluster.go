package inside

import (
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// ClusterOf returns the ID that etcd gives to the cluster which begins with a list, as "a=URL,b=URL", and a
// token: a hash of the IDs of its members, which are hashes of their URLs and the token. etcd keeps it for the
// cluster's life, so no version of it can compute another one.
//
// It returns an error for a list that etcd refuses, whose URLs are those of members: http or https, with a port
// and without a path.
func ClusterOf(initial, token string) (uint64, error) {
	urls := map[string][]string{}
	for part := range strings.SplitSeq(initial, ",") {
		name, text, _ := strings.Cut(part, "=")
		u, err := url.Parse(strings.TrimSpace(text))
		if err == nil {
			_, _, err = net.SplitHostPort(u.Host)
		}
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" {
			return 0, fmt.Errorf("%q is no member with the URL that others find it at", part)
		}
		urls[name] = append(urls[name], u.String())
	}
	var ids []uint64
	for name, list := range urls {
		slices.Sort(list)
		id := hash64([]byte(strings.Join(list, "") + token))
		if slices.Contains(ids, id) {
			return 0, fmt.Errorf("%s has the URL of another member", name)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var all []byte
	for _, id := range ids {
		all = binary.BigEndian.AppendUint64(all, id)
	}
	return hash64(all), nil
}

func hash64(b []byte) uint64 {
	sum := sha1.Sum(b)
	return binary.BigEndian.Uint64(sum[:])
}
