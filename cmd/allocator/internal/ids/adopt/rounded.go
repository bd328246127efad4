package adopt

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"github.com/flakelease/allocator/flake"
)

// Programs that keep numbers as floating point round large IDs and say nothing: a spreadsheet keeps
// 15 digits, JavaScript and jq write the shortest text that gives the same double, and a database
// column or a data frame that turned to floating point writes the double itself. The sids of such
// IDs are those of other generators.

// rounding counts the IDs of a sample that look rounded in one way, beside what chance gives.
type rounding struct {
	could    int64   // IDs long enough to be rounded
	rounded  int64   // IDs that look rounded
	expected float64 // IDs that would look rounded by chance
	unlikely float64 // the chance that all of rounded do, as 2^-unlikely
}

// add takes an ID. By chance one in 2^unlikely looks rounded.
func (r *rounding) add(looks bool, unlikely float64) {
	if unlikely <= 0 {
		return
	}
	r.could++
	r.expected += math.Exp2(-unlikely)
	if looks {
		r.rounded++
		r.unlikely += unlikely
	}
}

// sure reports whether chance is no explanation. Either all IDs look rounded, as one sample in 500 does
// by chance, or twice as many do as chance and its spread give.
func (r *rounding) sure() bool {
	return r.could > 0 && r.rounded == r.could && r.unlikely > 9 ||
		float64(r.rounded) > 2*r.expected+3*math.Sqrt(r.expected)+2
}

// roundings are the three ways in which programs round IDs.
type roundings struct {
	sheet  rounding // at most 15 significant digits
	script rounding // as few digits as a double needs
	double rounding // the value of a double
}

func (r *roundings) add(id flake.ID) {
	// An ID of d zeros at its end is a multiple of 5^d. The factor 2^d says nothing: generators whose
	// sequence stays 0 give it to every ID.
	zeros := func(d int) (bool, float64) {
		return d > 0 && int64(id)%int64(math.Pow10(d)) == 0, float64(d) * math.Log2(5)
	}
	lost := bits.Len64(uint64(id)) - 53 // so many low bits do not fit in a double
	r.sheet.add(zeros(len(strconv.FormatInt(int64(id), 10)) - 15))
	r.script.add(zeros(int(float64(lost) * math.Log10(2))))
	r.double.add(int64(float64(id)) == int64(id), float64(lost))
}

// why says how the IDs were rounded, and is empty if they were not. Where the sequence is in the lowest
// bits, doubles keep the sid, and IDs whose sequence is 0 are doubles anyway. So doubles count only
// where the sid is low, and nobody has said which sids there are.
func (r *roundings) why(low, said bool) string {
	text := func(way rounding, look, who string) string {
		return fmt.Sprintf("%d of %d IDs %s: they passed through %s, which changes sids",
			way.rounded, way.could, look, who)
	}
	switch sheet := r.sheet.sure(); {
	case sheet && r.sheet.rounded*2 > r.script.rounded: // What a spreadsheet wrote needs few digits too.
		return text(r.sheet, "have no more than 15 significant digits", "a spreadsheet")
	case sheet, r.script.sure():
		return text(r.script, "have no more digits than JavaScript and jq keep",
			"a program that keeps numbers as doubles")
	case low && !said && r.double.sure():
		return text(r.double, "are values of floating-point numbers",
			"a program or column that keeps numbers as doubles (if the sids are right, name them with --sids)")
	}
	return ""
}
