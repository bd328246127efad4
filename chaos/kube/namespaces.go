package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// groups is the mount point of control groups: one tree, or in version 1 a tree for
// each controller.
const groups = "/sys/fs/cgroup"

// setUpNamespaces mounts and configures what the new namespaces need. All of it ends
// with them.
func setUpNamespaces(s settings) error {
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", source, target, err)
		}
		return nil
	}
	// Keep our mounts invisible outside.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// Inside, containers have to see the mounts of pods' volumes.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := errors.Join(mount("tmpfs", "/run", "tmpfs", 0, "mode=755"),
		mount("tmpfs", "/var/log", "tmpfs", 0, "mode=755")); err != nil {
		return err
	}
	// Some paths are constants in the kubelet and containerd's shim.
	if err := errors.Join(os.MkdirAll("/run/lib/upper", 0o755), os.MkdirAll("/run/lib/work", 0o755)); err != nil {
		return err
	}
	if err := mount("overlay", "/var/lib", "overlay", 0,
		"lowerdir=/var/lib,upperdir=/run/lib/upper,workdir=/run/lib/work"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(realNode)); err != nil {
		return err
	}
	return network()
}

// network gives the machine its addresses. Its default route leads nowhere: without
// one, packets to addresses of Services would not be sent.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "machine0"},
		PeerName:  "nowhere0",
	}); err != nil {
		return fmt.Errorf("create a link: %w", err)
	}
	for _, name := range []string{"machine0", "nowhere0"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if name == "machine0" {
			if err := netlink.AddrAdd(l,
				&netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(hostIP), Mask: net.CIDRMask(24, 32)}}); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	l, err := netlink.LinkByName("machine0")
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(peerIP)}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// trees are the roots of the control groups.
func trees() []string {
	var list []string
	entries, err := os.ReadDir(groups)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(groups, e.Name(), "cgroup.procs")); err == nil &&
			isMount(filepath.Join(groups, e.Name())) {
			list = append(list, filepath.Join(groups, e.Name()))
		}
	}
	if len(list) == 0 { // version 2
		list = []string{groups}
	}
	return list
}

// isMount reports whether a directory is a mount point.
func isMount(dir string) bool {
	var here, above unix.Stat_t
	if unix.Stat(dir, &here) != nil || unix.Stat(filepath.Dir(dir), &above) != nil {
		return false
	}
	return here.Dev != above.Dev
}

// makeGroups creates a control group for the pods.
func makeGroups(name string) error {
	for _, t := range trees() {
		if t == groups {
			// A group of version 2 needs these in its parent.
			for _, c := range []string{"cpu", "cpuset", "memory", "pids", "io"} {
				_ = os.WriteFile(filepath.Join(groups, "cgroup.subtree_control"), []byte("+"+c), 0o644)
			}
		}
		if err := os.Mkdir(filepath.Join(t, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// removeGroups removes the control group of a run, which has no processes any more,
// and returns the directories that it could not remove.
func removeGroups(name string) []string {
	var left []string
	for _, t := range trees() {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(t, name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		slices.SortFunc(dirs, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
		for _, d := range dirs {
			if err := unix.Rmdir(d); err != nil {
				left = append(left, d)
			}
		}
	}
	return left
}
