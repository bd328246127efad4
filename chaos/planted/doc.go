// Command planted puts known bugs into copies of this project's files, one at a
// time, and shows which test finds each: tests that find nothing prove nothing.
//
//	planted [-bugs REGEXP] [-tier NAME] [-at-once N] [-write FILE]
//
// The product has no switch for a bug. Each is a text file in folder bugs: what is
// wrong, which claims break, which incident of another system it stands for, the
// exact text it replaces, and the tests that must fail. The go command's -overlay
// compiles the changed copy in place of the file, so nothing in the tree changes.
//
// A bug is caught when one of the tests named for it fails and says what is wrong.
// A mutant that does not compile, a test that runs out of time and a test that
// fails without the bug are failures of this program, and reported as such.
//
// It ends with 0 if every test named found its bug, 1 if one did not, 2 for bad
// usage, and 3 if it could not tell.
package main
