package capacity

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/capacity.md")

const page = "../../docs/capacity.md"

// table is a table of the page, between two marker lines.
type table struct {
	name string
	rows func(t *testing.T) []string
}

var tables = []table{
	{"simulated", func(t *testing.T) []string { return comparison(t, crowdFigures(t)) }},
	{"networks", func(t *testing.T) []string { return comparison(t, networkFigures(t)) }},
	{"hot", func(t *testing.T) []string { return comparison(t, hotFigures(t)) }},
	{"crowds", extended},
	{"load", totals},
}

// comparison checks each figure. It returns the measured and the simulated
// values, with fitted values in italics.
func comparison(t *testing.T, all []figure) []string {
	head := "| |"
	lines := map[string]string{}
	var names []string
	for _, f := range all {
		f.check(t)
		if column := " " + f.column + " |"; !strings.Contains(head, column) {
			head += column
		}
		if lines[f.row] == "" {
			names = append(names, f.row)
			lines[f.row] = "| " + f.row + " |"
		}
		simulated := digits(f.simulated)
		if f.fitted {
			simulated = "*" + simulated + "*"
		}
		lines[f.row] += fmt.Sprintf(" %s; %s |", digits(f.measured), simulated)
	}
	rows := []string{head, "|---|" + strings.Repeat("---:|", strings.Count(head, "|")-2)}
	for _, name := range names {
		for strings.Count(lines[name], "|") < strings.Count(head, "|") {
			lines[name] += " - |"
		}
		rows = append(rows, lines[name])
	}
	return rows
}

// Crowds over a network between machines that hold a name for longer than a
// hand-over takes.
func extended(t *testing.T) []string {
	if testing.Short() {
		return nil
	}
	counts := []int{2, 100, 1000, 10_000}
	rows := []string{"| hand-overs a second; of the server's time | 2 | 100 | 1,000 | 10,000 |", "|---|---:|---:|---:|---:|"}
	for _, c := range crowds {
		row := "| " + c.model.name + " |"
		for _, n := range counts {
			if n >= 1000 && c.model.name == postgreSQL.name { // sessions end there
				row += " - |"
				continue
			}
			s := crowd(t, c.model.patient(), 500*us, n, 1, time.Millisecond, 15*time.Second)
			row += fmt.Sprintf(" %s; %.0f %% |", digits(s.perSecond), 100*s.busy)
		}
		rows = append(rows, row)
	}
	return rows
}

func totals(*testing.T) []string {
	rows := []string{"| | processes | requests a second | CPUs of the server | memory of the server |", "|---|---:|---:|---:|---:|"}
	for _, l := range loads {
		for _, n := range []int{1000, 10_000, 100_000} {
			x := l.of(n, 10, 1)
			rows = append(rows, fmt.Sprintf("| %s | %s | %s | %.2g | %s |", l.backend, digits(float64(n)), digits(x.requests), x.busy, size(x.bytes)))
		}
	}
	return rows
}

// digits formats a number with three significant digits and with commas.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(v)))
	if v >= 1000 {
		whole := strconv.FormatFloat(math.Round(v*scale)/scale, 'f', 0, 64)
		for i := len(whole) - 3; i > 0; i -= 3 {
			whole = whole[:i] + "," + whole[i:]
		}
		return whole
	}
	return strconv.FormatFloat(math.Round(v*scale)/scale, 'f', -1, 64)
}

func size(bytes float64) string {
	if bytes >= 1e9 {
		return digits(math.Round(bytes/1e8)/10) + " GB"
	}
	return digits(math.Round(bytes/1e6)) + " MB"
}

// TestCapacityPage compares the simulation with the measurements, and the
// tables of docs/capacity.md with the simulation and the formulas. The order of
// goroutines at one instant is random, so figures may differ a little.
func TestCapacityPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tables {
		rows := x.rows(t)
		if rows == nil {
			continue // in the long form
		}
		begin, end := "<!-- "+x.name+" -->\n", "\n<!-- /"+x.name+" -->"
		before, rest, ok := strings.Cut(string(text), begin)
		have, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Errorf("%s lacks the lines of the table %s", page, x.name)
			continue
		}
		if *update {
			text = []byte(before + begin + strings.Join(rows, "\n") + end + after)
			continue
		}
		compare(t, x.name, strings.Split(have, "\n"), rows)
	}
	if *update {
		if err := os.WriteFile(page, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// compare returns the first cell of a table that is wrong.
func compare(t *testing.T, name string, have, want []string) {
	t.Helper()
	if len(have) != len(want) {
		t.Errorf("table %s of %s has %d lines, want %d: go test ./internal/capacity -run TestCapacityPage -update", name, page, len(have), len(want))
		return
	}
	for i := range want {
		a, b := strings.FieldsFunc(have[i], isGap), strings.FieldsFunc(want[i], isGap)
		if len(a) != len(b) {
			t.Errorf("table %s of %s has %q, want %q", name, page, have[i], want[i])
			return
		}
		for j := range b {
			if !near(a[j], b[j]) {
				t.Errorf("table %s of %s has %s in %q, want %s in %q: go test ./internal/capacity -run TestCapacityPage -update", name, page, a[j], have[i], b[j], want[i])
				return
			}
		}
	}
}

func isGap(r rune) bool { return strings.ContainsRune(" |;*", r) }

// near reports whether two words are equal, or are numbers that differ by at
// most a tenth, or by at most two, as small percentages do.
func near(a, b string) bool {
	x, errX := strconv.ParseFloat(strings.ReplaceAll(a, ",", ""), 64)
	y, errY := strconv.ParseFloat(strings.ReplaceAll(b, ",", ""), 64)
	if errX != nil || errY != nil {
		return a == b
	}
	if percent := math.Abs(y) < 100 && !strings.Contains(b, "."); percent && math.Abs(x-y) <= 2 {
		return true
	}
	return math.Abs(x-y) <= math.Abs(y)/10
}
