//go:build !unix

package unixsocket

import (
	"errors"
	"os"
)

var errUnsupported = errors.New("there is no lock for a Unix socket on this system: listen on a port of loopback")

func acquire(string) (*os.File, error) { return nil, errUnsupported }

func ours(os.FileInfo) bool { return false }

func refused(error) bool { return false }

func groupID(string) (string, error) { return "", errUnsupported }
