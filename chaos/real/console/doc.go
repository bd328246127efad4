// Package console tests the console in Chromium: what its pages show against the API, real
// faults pressed in the page of "allocator dev", hostile names, accessibility, and what a
// page and its streams cost. It tests the page of the simulation, too: what it shows against the
// same run of chaos/sim here.
//
// It tests, and gives nothing to import.
package console
