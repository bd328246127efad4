package sqlread

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

// TestSQL: every layout has all functions in every database, or is refused. chaos/real/interop runs them.
func TestSQL(t *testing.T) {
	for _, layout := range append(flake.Layouts(), "41/3/6,epoch=1970-01-01", "41/10/12,unit=1s", "41/10/12,epoch=1969-01-01") {
		f, err := flake.ParseFormat(layout)
		fatal.If(t, err)
		if refused := strings.Contains(layout, "unit=1s") || strings.Contains(layout, "1969"); (Check(f) != nil) != refused {
			t.Errorf("%s: %v", layout, Check(f))
		}
		for _, database := range Databases() {
			sql := SQL(database, "ids.", f)
			for _, name := range strings.Fields("id_ms id_time id_sid id_first uuid_first from_uuid to_flake from_flake to_ulid from_ulid") {
				if !strings.Contains(sql, name) || strings.Contains(sql, "%!") {
					t.Errorf("%s has no %s, or a wrong format:\n%s", database, name, sql)
				}
			}
			if n := len(Statements(database, "ids.", f)); n < 11 {
				t.Errorf("%s: %d statements", database, n)
			}
		}
	}
}
