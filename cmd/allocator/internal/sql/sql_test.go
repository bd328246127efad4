package sql

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/sqlid"
)

// TestDatabaseFlags: a database is named once, since two runners of one name would take turns in it.
func TestDatabaseFlags(t *testing.T) {
	for urls, want := range map[string]string{
		"postgres://a@db1/shop postgres://a@db2/shop": "",
		"postgres://a@db1/shop postgres://b@db1/shop": "db1:5432/shop is named twice",
		"postgres://shop@db1 postgres://b@db1/shop":   "db1:5432/shop is named twice",
	} {
		cmd := &cobra.Command{}
		opened := 0
		run := cli.DatabaseFlags(cmd, sqlid.Open)(func(_ context.Context, list []sqlid.Database) error {
			opened = len(list)
			return nil
		})
		for url := range strings.FieldsSeq(urls) {
			fatal.If(t, cmd.Flags().Set("database", url))
		}
		err := run(cmd, nil)
		if want == "" && (err != nil || opened != 2) || want != "" && (!strings.Contains(fmt.Sprint(err), want) || opened != 0) {
			t.Errorf("%s: %d, %v", urls, opened, err)
		}
	}
}
