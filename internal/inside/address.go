package inside

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/meet"
)

// OwnAddress returns the host in etcd.join that is this machine, and the address behind it.
//
// It returns ErrPasses before the machine has found its names and addresses, as after its start.
func OwnAddress(ctx context.Context, in config.Inside) (host, ip string, err error) {
	host = in.Address
	if host == "" && len(in.Join) == 0 {
		host = "127.0.0.1"
	}
	if host == "" && len(in.Join) == 1 {
		host = in.Join[0]
	}
	if host != "" {
		ips, err := lookup(ctx, host)
		if err != nil {
			return "", "", passing{fmt.Errorf("etcd.address: %s has no address: %w", host, err)}
		}
		return host, ips[0], nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", "", passing{fmt.Errorf("etcd.join: the addresses of this machine are unknown: %w; set etcd.address",
			err)}
	}
	mine := map[string]bool{}
	var all []string
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			mine[n.IP.String()] = true
			all = append(all, n.IP.String())
		}
	}
	var found []string
	for _, h := range in.Join {
		ips, err := lookup(ctx, h)
		if err != nil {
			continue // another one's name may be unknown here
		}
		if at := slices.IndexFunc(ips, func(ip string) bool { return mine[ip] }); at >= 0 {
			found, host, ip = append(found, h), h, ips[at]
		}
	}
	switch len(found) {
	case 1:
		return host, ip, nil
	case 0:
		return "", "", passing{fmt.Errorf("etcd.join: none of %s is an address of this machine (%s): correct the "+
			"list, set etcd.address, or leave etcd.inside out where no member runs", strings.Join(in.Join, ", "),
			strings.Join(all, ", "))}
	}
	return "", "", fmt.Errorf("etcd.join: %s are all addresses of this machine: name each machine once, or set "+
		"etcd.address", strings.Join(found, " and "))
}

func lookup(ctx context.Context, host string) ([]string, error) {
	if ip := net.ParseIP(host); ip != nil {
		return []string{ip.String()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, meet.Timeout)
	defer cancel()
	return net.DefaultResolver.LookupHost(ctx, host)
}
