package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Report is what a run found.
type Report struct {
	Backends  []*Backend
	Workloads []*Workload
	Results   *Results
}

// Write writes the table, as README.md, and the plots into a directory.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(r.Markdown()), 0o644); err != nil {
		return err
	}
	if curves := r.curves(); len(curves) > 0 {
		return r.plotCurves(curves, dir)
	}
	for _, w := range r.Workloads {
		if err := r.plot(w, filepath.Join(dir, w.File)); err != nil {
			return fmt.Errorf("%s: %w", w.File, err)
		}
	}
	return nil
}

const introduction = `# dsync beside its peers%s

Made by ` + "`make bench-peers`" + `, in one run on one machine. %s

An operation is one acquire and one release. A value is the median over the rounds; what follows in parentheses is how many times as large
it is as that of the floor, at the median over the rounds as well. The floor is the fewest requests through the same client library, with no
library of locks on top; it is no product, as nothing survives there that goes wrong. The servers have a CPU of their own. Libraries have
their own settings, but for a TTL of 6 s, and no limit to how often they try.

%s

`

// Markdown is the table.
func (r *Report) Markdown() string {
	if curves := r.curves(); len(curves) > 0 {
		return r.curveTables(curves)
	}
	var out strings.Builder
	size := r.Results.size
	title, others := "", "[Without a disk](memory/README.md) has the same on servers that keep nothing. [performance.md](../performance.md) says what the\n"+
		"figures come from, and what dsync does about it."
	if !r.judges() {
		title, others = ", without a disk", "Targets are for servers [with a disk](../README.md)."
	}
	fmt.Fprintf(&out, introduction, title, r.Results.aboutStorage(), others)
	fmt.Fprintf(&out, "%d rounds of %v to %v on %s.\n", size.Rounds, size.Slice, 2*size.Slice, r.Results.machine)
	for _, w := range r.Workloads {
		backends := r.measuredOn(w)
		if len(backends) == 0 {
			continue
		}
		fmt.Fprintf(&out, "\n## %s. %s\n", w.Name, w.Title)
		if len(r.marks(w)) > 0 {
			fmt.Fprintf(&out, "\n![ratios to the floor](%s)\n", w.File)
		}
		for _, b := range backends {
			r.table(&out, w, b)
		}
	}
	return out.String()
}

// floor returns the row that others are compared with.
func (w *Workload) floor(b *Backend) *Row {
	for _, r := range w.rows(b) {
		if r.Kind == Floor {
			return r
		}
	}
	return nil
}

// measuredOn returns the backends of which a workload was measured.
func (r *Report) measuredOn(w *Workload) []*Backend {
	return slices.DeleteFunc(slices.Clone(r.Backends), func(b *Backend) bool {
		return !slices.ContainsFunc(w.rows(b), func(row *Row) bool { return r.Results.of(b, w, row) != nil })
	})
}

func (r *Report) table(out *strings.Builder, w *Workload, b *Backend) {
	fmt.Fprintf(out, "\n| %s |", b.Name)
	for _, m := range w.Metrics {
		fmt.Fprintf(out, " %s |", m.Name)
	}
	rule := "\n|---|" + strings.Repeat("---:|", len(w.Metrics))
	if r.judges() {
		rule = " targets |" + rule + "---|"
	}
	out.WriteString(rule + "\n")
	var notes []string
	for _, row := range w.rows(b) {
		c := r.Results.of(b, w, row)
		if c == nil {
			continue
		}
		name := row.Name
		if row.Kind == Ours {
			name = "**" + name + "**"
		}
		fmt.Fprintf(out, "| %s |", name)
		for _, m := range w.Metrics {
			fmt.Fprintf(out, " %s |", r.figure(b, w, c, row, m))
		}
		text, missed := r.judged(w, b, row)
		out.WriteString(text + "\n")
		if c.Error != "" {
			notes = append(notes, fmt.Sprintf("%s failed: %s.", row.Name, strings.ReplaceAll(c.Error, "\n", "; ")))
		}
		for _, t := range missed {
			note, ok := Notes[t.subject()]
			if !ok {
				note = "not explained yet."
			}
			notes = append(notes, fmt.Sprintf("%s, %s: %s", row.Name, t.Metric, note))
		}
	}
	for _, n := range notes {
		fmt.Fprintf(out, "\n- %s\n", n)
	}
}

// figure is a value with its ratio to the floor.
func (r *Report) figure(b *Backend, w *Workload, c *cell, row *Row, m Metric) string {
	v := c.value(m.Name)
	if math.IsNaN(v) {
		return "-"
	}
	text := number(v)
	floor := w.floor(b)
	if floor == nil || floor == row {
		return text
	}
	if x := c.ratio(r.Results.of(b, w, floor), m.Name); !math.IsNaN(x) && !math.IsInf(x, 0) {
		text += " (" + number(x) + ")"
	}
	return text
}

// number has three digits, or all those before the point.
func number(v float64) string {
	digits := 0
	switch a := math.Abs(v); {
	case a == 0 || a >= 100:
	case a >= 10:
		digits = 1
	case a >= 0.095:
		digits = 2
	default:
		digits = 4
	}
	whole, fraction, point := strings.Cut(strconv.FormatFloat(v, 'f', digits, 64), ".")
	sign := strings.HasPrefix(whole, "-")
	whole = strings.TrimPrefix(whole, "-")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if sign {
		whole = "-" + whole
	}
	if point {
		whole += "." + fraction
	}
	return whole
}
