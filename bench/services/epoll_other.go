//go:build !linux

package services

import (
	"context"
	"errors"
	"io"
)

func constantEpoll(filer) error { return errors.ErrUnsupported }

// Cores needs Linux, which can give processes processors of their own.
func Cores(context.Context, string, string, Plan, io.Writer) error { return errors.ErrUnsupported }
