// Package scale says what a node costs its etcd, its peers and its machine, from 3
// to 1,024 of them: figures that were measured on whole nodes in virtual time
// (chaos/virtual, TestScale), and a calculation that is held to them and
// goes on where measuring takes too long. docs/SCALE.md is made of both:
//
//	go test ./chaos/virtual -run TestScale -scale 3,8,16,32,64,128,256 -timeout 60m
//	go test ./chaos/scale -update
//
// The calculation is about traffic and not about time: how soon a real etcd
// answers under it is for the tests of real clusters to say.
package scale
