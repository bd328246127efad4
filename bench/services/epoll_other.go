//go:build !linux

package services

import "errors"

func constantEpoll(filer) error { return errors.ErrUnsupported }
