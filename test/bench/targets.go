package bench

import (
	"fmt"
	"math"
	"strings"
)

// Target is a bound for one figure of a row of dsync.
type Target struct {
	Backend, Workload, Row, Metric string

	// Ratio says that the bound is for the ratio to the floor, Excess that it is for the difference to it, and Bare that it is for the ratio to
	// the row's own requests: see replayed.
	Ratio, Excess, Bare bool

	AtMost, AtLeast float64 // one of them, the other is 0; see Zero
	Zero            bool    // the bound is 0 at most
}

// subject is what a target is about, without its bound: the key of Notes.
type subject struct{ backend, workload, row, metric string }

func (t *Target) subject() subject { return subject{t.Backend, t.Workload, t.Row, t.Metric} }

// bound is the target in words.
func (t *Target) bound() string {
	of := ""
	switch {
	case t.Ratio:
		of = " of the floor's"
	case t.Excess:
		of = " more than the floor"
	case t.Bare:
		of = " of its two requests', bare"
	}
	switch {
	case t.Zero:
		return fmt.Sprintf("%s: 0", t.Metric)
	case t.AtLeast > 0:
		return fmt.Sprintf("%s at least %s%s", t.Metric, number(t.AtLeast), of)
	}
	return fmt.Sprintf("%s at most %s%s", t.Metric, number(t.AtMost), of)
}

// holds reports whether a measured value, to two digits after the point, is within the bound.
func (t *Target) holds(v float64) bool {
	rounded := math.Round(v*100) / 100
	switch {
	case t.Zero:
		return rounded <= 0
	case t.AtLeast > 0:
		return rounded >= t.AtLeast
	}
	return rounded <= t.AtMost
}

// measured returns the figure that a target is about.
func (r *Report) measured(t *Target, w *Workload, b *Backend, row *Row) float64 {
	c := r.Results.of(b, w, row)
	var floor *cell
	if f := w.floor(b); f != nil {
		floor = r.Results.of(b, w, f)
	}
	switch {
	case t.Bare:
		return c.ratio(r.Results.of(b, w, &Row{Name: bareName(row)}), t.Metric)
	case t.Ratio:
		return c.ratio(floor, t.Metric)
	case t.Excess:
		return c.value(t.Metric) - floor.value(t.Metric)
	}
	return c.value(t.Metric)
}

// judges reports whether the table has targets: they are for servers as people run them, with a disk.
func (r *Report) judges() bool { return r.Results.size.Storage.Disk }

// judged returns the column about the targets of a row, if the table has one, and those that are missed.
func (r *Report) judged(w *Workload, b *Backend, row *Row) (text string, missed []*Target) {
	if !r.judges() {
		return "", nil
	}
	var words []string
	for i := range Targets {
		t := &Targets[i]
		if t.Backend != b.Name || t.Workload != w.Name || t.Row != row.Name {
			continue
		}
		v := r.measured(t, w, b, row)
		switch {
		case math.IsNaN(v):
			words = append(words, t.bound()+": not measured")
		case t.holds(v):
			words = append(words, t.bound()+": held")
		default:
			words = append(words, "**"+t.bound()+": missed**")
			missed = append(missed, t)
		}
	}
	return " " + strings.Join(words, "<br>") + " |", missed
}
