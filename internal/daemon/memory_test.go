package daemon

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

// TestConnectionLimit: all ports together leave files for the node itself, however few it has.
func TestConnectionLimit(t *testing.T) {
	const limits = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max processes             7823                 7823                 processes \n" +
		"Max open files            %s            524288               files     \n"
	for _, tc := range []struct {
		files            string
		configured, each int
	}{
		{"1024", 4096, (1024 - 64 - 256) / 3},
		{"1024", 100, 100},
		{"1024", 0, (1024 - 64 - 256) / 3},
		{"524288", 4096, 4096},
		{"64", 4096, (64 - 16 - 16) / 3},
		{"3", 4096, 1},
		{"unlimited", 4096, 4096},
		{"unlimited", 0, 0},
	} {
		files := openFiles(func(file string) ([]byte, error) {
			if file != "/proc/self/limits" {
				return nil, os.ErrNotExist
			}
			return fmt.Appendf(nil, limits, tc.files), nil
		})
		if got := connectionLimit(tc.configured, 3, files); got != tc.each {
			t.Errorf("%s files, %d configured: %d connections, want %d", tc.files, tc.configured, got, tc.each)
		}
	}
	if files := openFiles(func(string) ([]byte, error) { return nil, os.ErrNotExist }); files != 0 {
		t.Errorf("without the file: %d", files)
	}
	if files := openFiles(os.ReadFile); runtime.GOOS == "linux" && files < 3 {
		t.Errorf("this process: %d", files)
	}
}

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
}
