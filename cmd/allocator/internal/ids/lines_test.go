package ids

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// A line has at most maxLine bytes; of a longer one comes its beginning, with the error tooLong.
const maxLine, tooLong = 4096, "flake: wrong length: a line of over 4096 bytes"

// all returns what each gives of arguments and stdin.
func all(t *testing.T, args []string, stdin string) (got []string, err error) {
	t.Helper()
	in := inputs{args, strings.NewReader(stdin), func() error { return nil }}
	err = in.each(t.Context(), func(input string, err error) error {
		if err != nil {
			input = fmt.Sprintf("%d bytes: %v", len(input), err)
		}
		got = append(got, input)
		return nil
	})
	return got, err
}

func TestInputs(t *testing.T) {
	long := strings.Repeat("0", maxLine)
	for _, c := range []struct {
		args  string
		stdin string
		want  []string
	}{
		{"a b", "c\n", []string{"a", "b"}},
		{"a - b", "c\nd", []string{"a", "c", "d", "b"}},
		{"-", "", nil},
		{"", "a\n\n \t\r\n b \r\nc", []string{"a", "b", "c"}},
		{"- -", "a\n", []string{"a"}},
		{"-", "\ufeffa\r\nb\n", []string{"a", "b"}},
		{"-", "\ufeff\na\n\ufeffb", []string{"a", "\ufeffb"}},
		{"-", long + "\nb\n", []string{long, "b"}},
		{"-", long + "0\nb\n", []string{"4096 bytes: " + tooLong, "b"}},
		{"-", "a\n" + strings.Repeat(long, 100) + "\nb", []string{"a", "4096 bytes: " + tooLong, "b"}},
		{"-", strings.Repeat(long, 100), []string{"4096 bytes: " + tooLong}},
	} {
		got, err := all(t, strings.Fields(c.args), c.stdin)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%q, %.20q: %.200q, %v, want %.200q", c.args, c.stdin, got, err, c.want)
		}
	}
	// Nothing at all was hardly meant.
	for _, stdin := range []string{"", "\n \n"} {
		if got, err := all(t, nil, stdin); err != errNoInput || got != nil {
			t.Errorf("%q: %q, %v", stdin, got, err)
		}
	}
	null, err := os.Open(os.DevNull)
	fatal.If(t, err)
	defer null.Close()
	if !cli.Terminal(null) || cli.Terminal(strings.NewReader("")) {
		t.Error("/dev/null has IDs, or a pipe has none")
	}
}

// FuzzInputs: the same lines come out as go in, blanks and long ones apart,
// wherever the reads fall.
func FuzzInputs(f *testing.F) {
	f.Add([]byte("a\nb"), uint16(1))
	f.Add([]byte("\r\n\n \xff\n"+strings.Repeat("0", maxLine+1)+"\nx"), uint16(100))
	f.Add([]byte("0-0\n\x00\n\n"), uint16(4095))
	f.Fuzz(func(t *testing.T, stdin []byte, step uint16) {
		if bytes.HasPrefix(stdin, []byte("\x1f\x8b")) || bytes.HasPrefix(stdin, []byte("\ufeff")) {
			t.Skip("gzipped, or with a byte order mark")
		}
		var want []string
		for line := range bytes.SplitAfterSeq(stdin, []byte("\n")) {
			if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > maxLine {
				want = append(want, "long "+string(line[:maxLine]))
			} else if line = bytes.TrimSpace(line); len(line) > 0 {
				want = append(want, string(line))
			}
		}
		in := inputs{[]string{"-"}, &stepping{stdin, int(step) + 1}, func() error { return nil }}
		err := in.each(t.Context(), func(got string, err error) error {
			if err != nil {
				got = "long " + got
			}
			if len(want) == 0 || got != want[0] {
				t.Fatalf("got %.80q, want %.80q", got, want)
			}
			want = want[1:]
			return nil
		})
		if err != nil || len(want) > 0 {
			t.Fatalf("%v, and %d did not come", err, len(want))
		}
	})
}

// stepping gives so many bytes at a time.
type stepping struct {
	rest []byte
	step int
}

func (s *stepping) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.step)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
