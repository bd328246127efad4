// Package stub is in the place of a driver of another database.
package stub
