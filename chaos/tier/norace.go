//go:build !race

package tier

const Raced = false
