package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// printLine writes v as JSON on a line of its own.
func printLine(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// maxLine bounds a line of stdin, in bytes: no ID has a hundred.
const maxLine = 64 << 10

// eachInput calls f for every argument, and for "-" for every line of stdin that
// is not blank, one at a time. flush runs whenever nothing more is to be had at
// once, so that a pipe sees its answers.
func eachInput(args []string, in io.Reader, flush func() error, f func(string) error) error {
	for _, arg := range args {
		if arg != "-" {
			if err := f(arg); err != nil {
				return err
			}
			continue
		}
		r := bufio.NewReaderSize(in, maxLine)
		for {
			line, err := r.ReadSlice('\n')
			if err == bufio.ErrBufferFull {
				return &exitError{exitInvalid, fmt.Errorf("a line of stdin has over %d bytes: one ID a line", maxLine)}
			}
			if line = bytes.TrimSpace(line); len(line) > 0 {
				if err := f(string(line)); err != nil {
					return err
				}
			}
			if r.Buffered() == 0 {
				if err := flush(); err != nil {
					return err
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return fmt.Errorf("read stdin: %w", err)
			}
		}
	}
	return flush()
}

// relative says how far t lies from now, in the largest unit that fits.
func relative(t, now time.Time) string {
	d := t.Sub(now)
	ahead := d > 0
	if d < 0 {
		d = -d
	}
	var text string
	switch {
	case d < time.Second:
		return "just now"
	case d < time.Minute:
		text = count(int(d/time.Second), "second")
	case d < time.Hour:
		text = count(int(d/time.Minute), "minute")
	case d < 24*time.Hour:
		text = count(int(d/time.Hour), "hour")
	case d < 365*24*time.Hour:
		text = count(int(d/(24*time.Hour)), "day")
	default:
		text = count(int(d/(365*24*time.Hour)), "year")
	}
	if ahead {
		return "in " + text
	}
	return text + " ago"
}

func count(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// times returns a time as people read it: UTC, local and from now.
func times(unixMs int64, now time.Time) string {
	t := time.UnixMilli(unixMs)
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return fmt.Sprintf("%d ms after 1970, year %d", unixMs, y)
	}
	utc := t.UTC().Format("2006-01-02T15:04:05.000Z")
	// Far-off times have no Duration.
	rel := relative(t, now)
	if t.Before(now.Add(-250*365*24*time.Hour)) || t.After(now.Add(250*365*24*time.Hour)) {
		rel = fmt.Sprintf("year %d", t.UTC().Year())
	}
	return fmt.Sprintf("%s  (local %s, %s)", utc, t.Local().Format("2006-01-02 15:04:05.000 -0700"), rel)
}
