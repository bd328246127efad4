// Package archtest holds the project to its own map: who may import whom, who
// may read a clock, and what the documents must name.
//
// It is tests only. They read the import graph of the module as the go command
// lists it, the source of every package, and the documents, and say for each
// breach which rule it breaks and why there is such a rule. A rule that is in
// the way is changed here, with its reason, and not worked around.
package archtest
