// Package archtest checks the project against its own rules: which package may
// import which, which may read a clock, what the documents must name, which words are
// not used, and how lines, comments and imports are laid out.
//
// It is tests only. They read the import graph of the modules as the go command lists
// it, the source of every package, and the documents. A failure names the rule that is
// broken and why there is such a rule. A rule that no longer fits is changed here, with
// its reason, and not worked around.
package archtest
