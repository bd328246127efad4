package daemon

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// defaultMemory is for connections where nothing limits the process's memory.
const defaultMemory = 1 << 30

// memoryLimit returns the bytes that connections may hold: two fifths of what the process may use. The rest
// is for the process itself, for what the count of a connection leaves out, and for garbage.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1) // only reads it
	if group := GroupMemory(); group > 0 {
		limit = min(limit, group)
	}
	if limit == math.MaxInt64 {
		return defaultMemory
	}
	return limit / 5 * 2
}

// filesKept are the files that connections of clients leave to etcd, to gossip and to the process itself.
const filesKept = 64

// connectionLimit returns how many connections each of some ports may have beside the admin port: the configured
// number, or 0 for any, but no more than the process may have files, where that is known.
func connectionLimit(configured, ports int, files int64) int {
	if files == 0 || ports == 0 {
		return configured
	}
	each := max((int(files-min(filesKept, files/4))-adminLimit(files))/ports, 1)
	if configured > 0 && configured <= each {
		return configured
	}
	return each
}

// adminLimit returns how many connections the admin port may have.
func adminLimit(files int64) int {
	if files == 0 {
		return adminConnections
	}
	return int(min(adminConnections, max(files/4, 1)))
}

// openFiles returns how many files the process may have open; 0: not known, or any.
//
// Source: Linux, proc_pid_limits(5).
func openFiles(read func(string) ([]byte, error)) int64 {
	limits, err := read("/proc/self/limits")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(limits)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			n, _ := strconv.ParseInt(soft, 10, 64) // "unlimited" is 0
			return n
		}
	}
	return 0
}

// GroupMemory returns the smallest memory limit of the process's control group and the
// groups around it, in bytes; 0: none.
func GroupMemory() int64 { return groupMemory(os.ReadFile) }

// groupMemory is GroupMemory with another way to read files.
//
// Source: the kernel's documentation of control groups, version 2, and of the memory
// controller of version 1.
func groupMemory(read func(string) ([]byte, error)) int64 {
	own, err := read("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	smallest := int64(0)
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			text, err := read(path.Join(root, dir, file))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil &&
				n < unlimited && (smallest == 0 || n < smallest) {
				smallest = n
			}
			if dir == "/" {
				break
			}
		}
	}
	return smallest
}

// unlimited is above the memory of any machine; version 1 shows a number near 2^63 for
// "no limit".
const unlimited = 1 << 50
