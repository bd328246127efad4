// Package audit finds duplicates and disorder in logs of IDs, exactly, in
// bounded memory. [Auditor] reads logs of one ID a line; [Sorter] finds the keys
// that were added twice, however many there are.
//
// What does not fit in memory goes to a [Spool]; audit/spool keeps it in files.
// The package opens nothing and reads no clock.
//
// "sort | uniq -d" is no replacement: it does not see one ID in two forms, nor a flake in two
// ULIDs, and names no lines. It is no faster: for 100 million shuffled decimal IDs in LC_ALL=C it takes
// 74 s of processor time and the 256 MB that it is given, and an Auditor 63 s and 87 MB. Package adopt finds
// duplicates with the same Sorter, and chaos/history sorts blocks of IDs with it.
package audit

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/ulid"
)

// Order is what has to rise.
type Order string

// Orders.
const (
	OrderNone   Order = "none"   // nothing
	OrderFile   Order = "file"   // the lines of each log
	OrderGlobal Order = "global" // all lines, in the order in which logs are read
)

// Config is what an Auditor reads, and how.
type Config struct {
	Kind    describe.Kind // form of the IDs
	Space   flake.Format  // space whose flakes are read
	Order   Order
	ByFlake bool  // flakes must be unique, whatever form they have
	Memory  int64 // about how much to use, in bytes
	Spool   Spool // takes what does not fit in Memory
}

// Auditor compares every ID of the logs that it reads with every other. It is
// not safe for concurrent use.
type Auditor struct {
	cfg  Config
	logs []string

	narrow, wide *Sorter // IDs of 64 bits and of 128: no two of different widths are equal
	report       Report
	sids         []int64 // IDs of each sid
	from, to     int64   // Unix ms, once there is an ID
	wideKind     describe.Kind
	narrowForm   describe.Kind // the form of the first ID of 64 bits, as flake, int or hex; "": none yet
	last         *lastID
}

// lastID is the ID of the line before.
type lastID struct {
	wide bool
	key  Key
	pos  uint64
}

// New returns an Auditor that has read nothing.
func New(cfg Config) *Auditor {
	return &Auditor{
		cfg: cfg,
		// The garbage collector lets the heap double, and two widths may be mixed.
		narrow: NewSorter(cfg.Memory/6, cfg.Spool),
		wide:   NewSorter(cfg.Memory/6, cfg.Spool),
		report: Report{ShownDuplicates: []DuplicateID{}, ShownDisorder: []Disorder{}, ShownInvalid: []InvalidLine{}},
		sids:   make([]int64, max(cfg.Space.Layout.Holders(), 1)),
		from:   math.MaxInt64,
		to:     math.MinInt64,
	}
}

// A position is a log and a line.
const (
	lineBits = 48
	// MaxLogs bounds how many logs an Auditor reads.
	MaxLogs = 1 << (64 - lineBits)
)

func (a *Auditor) position(line int64) uint64 {
	return uint64(len(a.logs)-1)<<lineBits | uint64(line)
}

// place writes a position as "log:line".
func (a *Auditor) place(pos uint64) string {
	return a.logs[pos>>lineBits] + ":" + strconv.FormatUint(pos&(1<<lineBits-1), 10)
}

const (
	maxLine   = 4096 // bytes: no ID has a hundred
	readBytes = 64 << 10
)

var (
	errLong       = fmt.Errorf("%w: a line of over %d bytes", flake.ErrLength, maxLine)
	byteOrderMark = []byte("\ufeff") // what some editors and shells put in front of a file
)

// Read reads a log of one ID a line, plain or gzipped; name stands for it in the
// report. Blank lines do not count. Lines that hold no ID are part of what the
// audit finds, and no error.
func (a *Auditor) Read(name string, r io.Reader) error {
	a.logs = append(a.logs, name)
	a.report.Files++
	if a.cfg.Order == OrderFile {
		a.last = nil
	}
	return EachLine(r, func(line int64, text []byte, err error) error {
		if err != nil {
			a.invalid(line, err)
			return nil
		}
		id, err := describe.Parse(string(text), a.cfg.Kind, a.cfg.Space)
		if err != nil {
			a.invalid(line, err)
			return nil
		}
		if a.narrowForm == "" && !id.IsWide() {
			a.narrowForm = formOf(string(text), a.cfg.Kind, id.Flake)
		}
		return a.add(line, id)
	})
}

// EachLine calls f for each line of r that is not blank, plain or gzipped, without the blanks
// around it; line counts from 1 on, and text is valid during the call. A line of over 4,096 bytes comes as its
// beginning, with a flake.ErrLength. A byte order mark does not count. An error of f ends it.
func EachLine(r io.Reader, f func(line int64, text []byte, err error) error) error {
	in := bufio.NewReaderSize(r, readBytes)
	if magic, err := in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in = bufio.NewReaderSize(z, readBytes)
	}
	for line := int64(1); ; line++ {
		text, err := in.ReadSlice('\n')
		var ferr error
		text = bytes.TrimSuffix(text, []byte("\n"))
		if line == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if len(text) > maxLine {
			ferr = f(line, text[:maxLine], errLong)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
		} else if text = bytes.TrimSpace(text); len(text) > 0 {
			ferr = f(line, text, nil)
		}
		switch {
		case ferr != nil:
			return ferr
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (a *Auditor) invalid(line int64, err error) {
	a.report.Invalid++
	if len(a.report.ShownInvalid) < maxShown {
		a.report.ShownInvalid = append(a.report.ShownInvalid,
			InvalidLine{a.place(a.position(line)), LineError{describe.Class(err), err.Error()}})
	}
}

// add takes the ID of a line.
func (a *Auditor) add(line int64, id describe.ID) error {
	f, err := id.AsFlake(a.cfg.Space)
	switch {
	case err == nil:
		a.seen(a.cfg.Space.UnixMilli(f))
		if s := int(a.cfg.Space.SID(f)); s < len(a.sids) {
			a.sids[s]++
			if id.IsWide() {
				a.report.WideSID++
			}
		}
	case a.cfg.ByFlake:
		a.invalid(line, err)
		return nil
	default:
		if id.Kind == describe.ULID || id.Wide.IsV7() { // other UUIDs have no time
			a.seen(id.Wide.UnixMilli())
		}
		a.report.NoSID++
	}
	a.report.IDs++
	pos := a.position(line)
	if !id.IsWide() || a.cfg.ByFlake {
		key := Key{Lo: uint64(f)}
		a.compare(lastID{false, key, pos})
		return a.narrow.Add(Item{key, pos})
	}
	if a.wideKind == "" {
		a.wideKind = id.Kind
	}
	b := id.Wide.Bytes()
	key := Key{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
	a.compare(lastID{true, key, pos})
	return a.wide.Add(Item{key, pos})
}

func (a *Auditor) seen(unixMs int64) { a.from, a.to = min(a.from, unixMs), max(a.to, unixMs) }

// compare compares an ID with the line before. The same ID again is a duplicate
// and no disorder; IDs of different widths are not compared.
func (a *Auditor) compare(id lastID) {
	if a.cfg.Order == OrderNone {
		return
	}
	if l := a.last; l != nil && l.wide == id.wide && id.key.Compare(l.key) < 0 {
		a.report.Disorder++
		if len(a.report.ShownDisorder) < maxShown {
			a.report.ShownDisorder = append(a.report.ShownDisorder, Disorder{a.place(id.pos),
				fmt.Sprintf("%s is below %s of %s", a.text(id.key, id.wide), a.text(l.key, l.wide), a.place(l.pos))})
		}
	}
	a.last = &id
}

// formOf returns the form in which a text has id.
func formOf(s string, kind describe.Kind, id flake.ID) describe.Kind {
	digits := strings.Trim(s, "0123456789") == ""
	switch {
	case kind == describe.Hex, strings.HasPrefix(strings.ToLower(s), "0x"):
		return describe.Hex
	case kind == describe.Int, digits && s != id.String():
		return describe.Int
	}
	return describe.Flake
}

// text writes an ID in the form that the logs had the first one of its width in.
func (a *Auditor) text(k Key, wide bool) string {
	if !wide {
		switch id := flake.ID(k.Lo); a.narrowForm {
		case describe.Int:
			return string(id.AppendInt(nil))
		case describe.Hex:
			return id.Hex()
		default:
			return id.String()
		}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], k.Hi)
	binary.BigEndian.PutUint64(b[8:], k.Lo)
	id := ulid.FromArray(b)
	if a.wideKind == describe.UUID {
		return id.UUID()
	}
	return id.String()
}

// Finish compares what was read and returns what was found. It is called once.
func (a *Auditor) Finish() (*Report, error) {
	r := &a.report
	for _, wide := range []bool{false, true} {
		sorter := a.narrow
		if wide {
			sorter = a.wide
		}
		n, err := sorter.Duplicates(func(d Duplicate) {
			if len(r.ShownDuplicates) < maxShown {
				r.ShownDuplicates = append(r.ShownDuplicates,
					DuplicateID{a.text(d.Key, wide), a.place(d.A), a.place(d.B)})
			}
		})
		if err != nil {
			return nil, err
		}
		r.Duplicates += n
	}
	r.Sound = r.IDs > 0 && r.Duplicates == 0 && r.Disorder == 0 && r.Invalid == 0
	if a.from <= a.to {
		r.From, r.To = describe.Time(a.from), describe.Time(a.to)
	}
	r.SIDs = map[int]int64{}
	for sid, n := range a.sids {
		if n > 0 {
			r.SIDs[sid] = n
		}
	}
	return r, nil
}

// maxShown bounds the evidence of each kind.
const maxShown = 10

// Report is what an audit found, as its JSON shows it.
type Report struct {
	Sound      bool          `json:"sound"`
	Files      int           `json:"files"`
	IDs        int64         `json:"ids"`
	Duplicates uint64        `json:"duplicates"` // surplus: an ID that is there three times counts two
	Disorder   int64         `json:"disorder"`   // lines whose ID is below the one before
	Invalid    int64         `json:"invalid"`    // lines that hold no ID
	From       *string       `json:"from"`       // times of the smallest and the greatest ID; nil: there is none
	To         *string       `json:"to"`
	SIDs       map[int]int64 `json:"sids"`
	// WideSID counts the IDs of 128 bits in SIDs. Their sid is right only if this space issued them.
	WideSID int64 `json:"wide_sid"`
	NoSID   int64 `json:"no_sid"` // IDs that come from no flake

	ShownDuplicates []DuplicateID `json:"duplicates_shown"` // the first ten of each
	ShownDisorder   []Disorder    `json:"disorder_shown"`
	ShownInvalid    []InvalidLine `json:"invalid_shown"`
}

// DuplicateID is an ID that two lines have.
type DuplicateID struct {
	ID  string `json:"id"`
	At  string `json:"at"` // file:line
	And string `json:"and"`
}

// Disorder is a line whose ID is below the one before.
type Disorder struct {
	At     string `json:"at"`
	Detail string `json:"detail"`
}

// InvalidLine is a line that holds no ID.
type InvalidLine struct {
	At    string    `json:"at"`
	Error LineError `json:"error"`
}

// LineError is what is wrong with a line.
type LineError struct {
	Class   string `json:"class"` // a class of describe.Class
	Message string `json:"message"`
}
