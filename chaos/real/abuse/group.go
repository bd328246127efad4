package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// group is a control group that bounds the memory of a process; nil is none.
type group struct {
	dir     string
	version int
}

// newGroup makes a control group below our own.
func newGroup(name string, limit int64) (*group, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var errs []error
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		g, file := &group{version: 1}, "memory.limit_in_bytes"
		switch {
		case fields[1] == "memory":
			g.dir = filepath.Join("/sys/fs/cgroup/memory", fields[2], name)
		case fields[0] == "0":
			g.version, file = 2, "memory.max"
			g.dir = filepath.Join("/sys/fs/cgroup", fields[2], name)
		default:
			continue
		}
		if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
			continue
		}
		if err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
			errs = append(errs, err)
			g.remove()
			continue
		}
		if g.version == 2 {
			_ = os.WriteFile(filepath.Join(g.dir, "memory.swap.max"), []byte("0"), 0)
		}
		return g, nil
	}
	return nil, fmt.Errorf("no memory controller can be used: %w", errors.Join(errs...))
}

// add moves a process into the group.
func (g *group) add(pid int) error {
	if g == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

func (g *group) remove() {
	if g != nil {
		_ = os.Remove(g.dir)
	}
}
