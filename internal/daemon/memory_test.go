package daemon

import (
	"os"
	"testing"
)

func TestGroupMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":        {nil, 0},
		"container":   {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "268435456\n"}, 256 << 20},
		"not limited": {map[string]string{"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"the smallest": {map[string]string{"/proc/self/cgroup": "0::/system.slice/allocator.service\n",
			"/sys/fs/cgroup/system.slice/allocator.service/memory.max": "900000000\n", "/sys/fs/cgroup/system.slice/memory.max": "100000000\n"}, 100_000_000},
		"version 1": {map[string]string{"/proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/1\n0::/\n",
			"/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "200000000\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 200_000_000},
	} {
		got := groupMemory(func(file string) ([]byte, error) {
			if text, ok := tc.files[file]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		})
		if got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	if got := memoryLimit(5 << 20); got != 5<<20 {
		t.Errorf("configured: %d", got)
	}
}
