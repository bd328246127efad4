// Command site serves the site of the documents, which make docs builds, to this machine.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	dir := flag.String("dir", "bin/docs", "directory of the site")
	addr := flag.String("addr", "127.0.0.1:8088", "address to serve it at")
	flag.Parse()
	l, err := net.Listen("tcp", *addr)
	if err == nil {
		fmt.Printf("the documents are at http://%s/\n", l.Addr())
		err = http.Serve(l, http.FileServer(http.Dir(*dir)))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
