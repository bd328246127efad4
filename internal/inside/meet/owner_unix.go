//go:build unix

package meet

import (
	"io/fs"
	"os"
	"syscall"
)

// Own gives name in dir, and what is below it, to the owner of dir, if root calls it. A command that an
// operator runs as root so leaves nothing that the node, which is another user, cannot use. The owner
// of dir can lead it to nothing outside of dir.
func Own(dir, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	return fs.WalkDir(root.FS(), name, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}
