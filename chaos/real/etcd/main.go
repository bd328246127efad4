// Command etcd is the etcd server as its authors ship it, and in the same binary
// their tool for snapshots, so that a harness needs to build one program.
//
//	etcd --name a --data-dir …                     the server, all its flags
//	etcd snapshot status FILE                      as etcdutl does
//	etcd snapshot restore FILE --data-dir DIR …
//
// Nothing of etcd is changed. Slow and failing disks are made from outside, by
// the hook of chaos/real/clockhook, which sees every fsync of a Go program.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] != "snapshot" {
		etcdmain.Main(os.Args)
		return
	}
	root := &cobra.Command{Use: "etcd", SilenceUsage: true}
	// The printer of etcdutl's commands asks for this flag of its own root.
	root.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple",
		"fields, json, protobuf, simple or table")
	root.AddCommand(etcdutl.NewSnapshotCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
