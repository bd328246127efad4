package history

import "slices"

// spans is a set of whole numbers as ranges that neither overlap nor touch, in
// order. What is added mostly lies at its end.
type spans []span

type span struct{ from, to int64 } // both inside

// add adds from … to.
func (s *spans) add(from, to int64) {
	v := *s
	i := len(v)
	for i > 0 && v[i-1].from > from {
		if i > 8 { // far from the end
			i, _ = slices.BinarySearchFunc(v, from, func(p span, from int64) int {
				if p.from > from {
					return 1
				}
				return -1
			})
			break
		}
		i--
	}
	if i > 0 && v[i-1].to+1 >= from {
		i--
		v[i].to = max(v[i].to, to)
	} else {
		v = slices.Insert(v, i, span{from, to})
	}
	j := i + 1
	for j < len(v) && v[j].from <= v[i].to+1 {
		v[i].to = max(v[i].to, v[j].to)
		j++
	}
	*s = slices.Delete(v, i+1, j)
}

// cut removes everything from a number on.
func (s *spans) cut(from int64) {
	v := *s
	for len(v) > 0 && v[len(v)-1].from >= from {
		v = v[:len(v)-1]
	}
	if n := len(v); n > 0 {
		v[n-1].to = min(v[n-1].to, from-1)
	}
	*s = v
}

// without returns the smallest number of s that is not in o.
func (s spans) without(o spans) (int64, bool) {
	j := 0
	for _, p := range s {
		for need := p.from; need <= p.to; need = o[j].to + 1 {
			for j < len(o) && o[j].to < need {
				j++
			}
			if j == len(o) || o[j].from > need {
				return need, true
			}
		}
	}
	return 0, false
}

// shared returns the smallest number that is in both s and o.
func (s spans) shared(o spans) (int64, bool) {
	i, j := 0, 0
	for i < len(s) && j < len(o) {
		switch {
		case s[i].to < o[j].from:
			i++
		case o[j].to < s[i].from:
			j++
		default:
			return max(s[i].from, o[j].from), true
		}
	}
	return 0, false
}
