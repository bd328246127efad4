package virtual

import _ "unsafe" // for go:linkname

// valCtxCh is a channel of etcd's client that is never closed: the Done of the
// contexts of its watches. It is made when the program starts, outside every
// bubble, and a goroutine that waits for such a channel as well keeps the time of
// its bubble from passing. So each bubble begins with one of its own. Tests of
// this package must therefore not run in parallel.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

// enterBubble makes etcd's client fit for the bubble that it is called in.
func enterBubble() { valCtxCh = make(chan struct{}) }
