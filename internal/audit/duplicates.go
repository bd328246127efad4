package audit

import "cmp"

// Key is an ID of 64 bits (Hi is then 0) or 128. Keys sort as the IDs do.
type Key struct{ Hi, Lo uint64 }

// Compare returns −1, 0 or +1 as k is less than, equal to or greater than o.
func (k Key) Compare(o Key) int { return cmp.Or(cmp.Compare(k.Hi, o.Hi), cmp.Compare(k.Lo, o.Lo)) }

// Duplicate is a key that two places have in common.
type Duplicate struct {
	Key  Key
	A, B uint64 // the positions, A the lowest of all that have the key
}

// Duplicates calls found for each item whose key another one has at a lower position,
// in order of their keys, and returns how many these are: of a key that was added three
// times two. The Sorter is empty afterwards. Errors are the spool's; nothing is then
// proven.
func (s *Sorter) Duplicates(found func(Duplicate)) (surplus uint64, err error) {
	var first Item
	begun := false
	err = s.Each(func(i Item) {
		if !begun || first.Key != i.Key {
			first, begun = i, true
			return
		}
		surplus++
		found(Duplicate{i.Key, first.Pos, i.Pos})
	})
	return surplus, err
}
