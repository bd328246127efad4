package admin

import "testing"

func TestTimeFlag(t *testing.T) {
	for text, want := range map[string]int64{
		"2026-02-01T12:00:00Z": 1769947200000, "2026-02-01T12:00:00.0001Z": 1769947200001, "2026-02-01T13:00:00+01:00": 1769947200000,
		"2026-02-01": 1769904000000, "2026-02-01T12:00:00": 1769947200000, "1960-01-01": 0, "soon": 0, "": 0,
	} {
		var f timeFlag
		if err := f.Set(text); (err == nil) != (want != 0) || int64(f) != want {
			t.Errorf("%q: %d, %v, want %d", text, f, err, want)
		}
	}
}
