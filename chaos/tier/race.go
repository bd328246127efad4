//go:build race

package tier

// Raced says whether this is a test with the race detector, which costs five times the time and more, and lets
// pools drop some of what they are given. Packages whose tests ask run without the detector, too.
const Raced = true
