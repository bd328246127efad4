// Package console has tests of the pages for operators in a real browser, Chromium,
// against "allocator dev" and real faults, and against a cluster of 1,024 sids with hostile
// names.
//
// A test that finds no Chromium, or no axe-core because npm is missing, is skipped and says
// so. The flag -long adds what takes minutes. Screenshots of each page are written into
// the directory of -shots, for people.
package console
