//go:build !linux

package services

import (
	"errors"
	"net"
)

func echoEpoll(*net.TCPListener) error { return errors.ErrUnsupported }
