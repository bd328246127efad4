package inside

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// child is the process of the member.
type child struct {
	pid   int
	ended chan struct{}
	cmd   *exec.Cmd // nil: another process started it
	err   error     // why it ended; set before ended is closed
}

func (i *Inside) start() (*child, error) {
	cmd := exec.Command(i.cfg.Program, "etcd", "run", string(i.Dir))
	cmd.Stderr = os.Stderr // the file itself: it outlives this process
	cmd.SysProcAttr = apart()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", i.cfg.Program, err)
	}
	c := &child{pid: cmd.Process.Pid, cmd: cmd, ended: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.ended)
	}()
	i.cfg.Log.Info("etcd inside started", "process", c.pid, "version", etcdstore.ServerVersion(), "directory", i.Dir)
	return c, nil
}

// adoptedEvery is how often a member is looked for that another process started. Its end cannot
// be waited for.
const adoptedEvery = 200 * time.Millisecond

// adopt returns the member that holds the lock of d.
func adopt(d Dir, pid int) *child {
	c := &child{pid: pid, ended: make(chan struct{})}
	go func() {
		for d.runs() == pid {
			time.Sleep(adoptedEvery)
		}
		close(c.ended)
	}()
	return c
}

func (c *child) result() string {
	return cmp.Or(c.err, errors.New("it stopped")).Error()
}

// stop stops the member in order: it hands leadership over.
func (c *child) stop(log *slog.Logger) {
	select {
	case <-c.ended:
		return
	default:
	}
	terminate(c.pid)
	select {
	case <-c.ended:
	case <-time.After(config.InsideStop - time.Second):
		log.Warn("etcd inside does not stop: killing it", "process", c.pid)
		kill(c.pid)
		<-c.ended
	}
	log.Info("etcd inside stopped", "process", c.pid)
}
