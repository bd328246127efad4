package unixsocket

// Open gives a socket its owner and its mode.
var Open = open
