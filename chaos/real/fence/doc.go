// Package fence tests the watermark with real nodes: how far it lags, and that tables which
// are fenced by it lose no row to their readers.
//
// It tests, and gives nothing to import.
package fence
