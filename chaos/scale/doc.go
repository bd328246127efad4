// Package scale gives what a node costs its etcd, its peers and its machine, from 3
// to 1,024 nodes: values measured on whole nodes in virtual time (chaos/virtual,
// TestScale), and a calculation that is tested against them and covers sizes for
// which measuring takes too long. testdata has what was measured, docs/RESULTS.md what
// follows from both:
//
//	go test ./chaos/virtual -run TestScale -scale 3,8,16,32,64,128 -timeout 60m
//	go test ./chaos/scale -run TestCalculation -v
//
// The calculation is about traffic and not about time.
package scale
