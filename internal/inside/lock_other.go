//go:build !unix

package inside

import (
	"errors"
	"math"
	"syscall"
	"time"
)

var errTaken = errors.New("the lock is taken")

// etcd inside needs locks that end with their process.
var errSystem = errors.New("etcd.inside works on Linux and other Unix systems only: set etcd.endpoints")

func hold(string, time.Duration) (func(), int, error) { return nil, 0, errSystem }

func (d Dir) lock() (func(), error) { return nil, d.unfit("%v", errSystem) }

func held(string) int { return 0 }

// access refuses every directory.
func access(string) error { return errSystem }

func private(string) error { return nil }

func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

func ahead(int) {}

func apart() *syscall.SysProcAttr { return nil }

func terminate(int) {}

func kill(int) {}

func killGroup(int) error { return nil }
