// Package console tests the console in Chromium: what its pages show against the API, real
// faults pressed in the page of "allocator dev", hostile names, accessibility, and what a
// page and its streams cost.
//
// It is a module of its own, so that what drives the browser is not in the module graph of
// programs that compile against the product. It tests, and gives nothing to import.
package console
