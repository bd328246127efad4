// Command planted puts known bugs into copies of this project's files, one at a
// time, and reports which tests find each.
//
//	planted [-bugs REGEXP] [-kind NAME] [-at-once N] [-write FILE]
//	planted -bugs NAME -overlay DIR
//	planted -mutate PACKAGE|FILE [-limit N] [-seed N] [-at-once N]
//
// The product has no switch for a bug. Each is a text file in directory bugs: what is
// wrong, which claims break, which incident of another system it represents, the
// exact text it replaces, and the tests that must fail. The go command's -overlay
// compiles the changed copy in place of the file, so nothing in the tree changes.
//
// A bug is caught when one of the tests named for it fails and reports what is wrong. Each
// test runs as in `make test` first, and as in `make check` if it found nothing there.
// A mutant that does not compile, a test that times out and a test that
// fails without the bug are failures of this program, and reported as such.
//
// With -mutate PACKAGE it makes the mistakes itself, each a mutant of one operator,
// condition or statement of that package, and reports those that the package's tests do
// not notice, unless mutants.txt has the reason why a mutant does not matter. It is slow: one
// to two seconds of a core for each of the 200 to 600 mutants of a package. A hang counts
// as noticed.
//
// Exit codes: 0 every test found its bug or mutant, 1 one did not, 2 wrong usage, 3 a result
// is unknown.
package main
