package conformance

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReportFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	before := *reportFlag
	*reportFlag = path
	defer func() { *reportFlag = before }()
	t.Run("run", func(t *testing.T) {
		runChecks(t, onMemory(nil, good), []check{
			{"a/kept", "One promise.", func(*env) error { return nil }},
			{"a/unclaimed", "Another promise.", func(e *env) error { return &refusedError{"readers"} }},
		})
	})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `running	TestReportFile/run/a/kept	One promise.
kept	TestReportFile/run/a/kept	One promise.
running	TestReportFile/run/a/unclaimed	Another promise.
refused	TestReportFile/run/a/unclaimed	Another promise.
`
	if got := string(text); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestSummaryOfRefusals has one group that was refused as a whole, one group in
// part, and one group in one mode.
func TestSummaryOfRefusals(t *testing.T) {
	var s summary
	for _, c := range []struct{ name, refused string }{
		{"lease/renew", ""},
		{"sharing/a", "readers"}, {"sharing/b", "readers"}, {"sharing/c", "order of readers"},
		{"fencing/rises", ""}, {"fencing/survives", "durable tokens"},
		{"admin/force", "forced unlocking"},
		{"lease/renew/read", "readers"}, {"loss/told/read", "readers"},
	} {
		s.add(check{Name: c.name}, result{refused: c.refused})
	}
	want := "2 promises kept, 0 broken, 7 refused as unsupported, 0 not verified\n" +
		"refused as unsupported: sharing/*, all 3 (readers; order of readers), fencing/survives (durable tokens), " +
		"admin/force (forced unlocking), */*/read, all 2 (readers)"
	if got := s.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
