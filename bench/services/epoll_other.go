//go:build !linux

package services

import "errors"

func echoEpoll(filer) error { return errors.ErrUnsupported }
