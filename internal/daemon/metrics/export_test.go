package metrics

// Definitions has every family of this package, in the order of the reference.
func Definitions() []*definition { return definitions }
