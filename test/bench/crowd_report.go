package bench

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

const aboutCrowds = `# One name that many clients want

Made by ` + "`make bench-crowds`" + `, on one machine, a backend at a time. N clients, each with connections of its own, wait for one name, keep it for 1 ms, give
it back and wait again, so there can be no more than a thousand hand-overs a second less what a timer is late. The clients are in up to %d
processes that share a CPU; the servers have the other one. %s
In parentheses is how many times as large a value is as that of the floor: the fewest requests through the same client library, with no library of locks on top. It is no product, as nothing survives there
that goes wrong.

Requests are counted at the server, in a bout of its own, and those that keep a session alive count as well. Jain's index is over clients: 1 if all got the
name equally often. Where there were fewer hand-overs than clients, no index could be larger than their ratio. A longest wait that is longer than the
bout (1 s, and 5 ms for each client) is that of a client which did not get the name at all.

%s.
`

// crowds returns the workloads of crowds that are reported.
func (r *Report) crowds() []*Workload {
	var all []*Workload
	for _, w := range r.Workloads {
		if w.Clients > 0 {
			all = append(all, w)
		}
	}
	return all
}

// crowdBackends returns the backends of which something was measured.
func (r *Report) crowdBackends() []*Backend {
	return slices.DeleteFunc(slices.Clone(r.Backends), func(b *Backend) bool {
		return !slices.ContainsFunc(r.crowds(), func(w *Workload) bool { return r.Results.of(b, w, w.floor(b)) != nil })
	})
}

func crowdFile(b *Backend) string { return strings.ToLower(b.Name) + ".svg" }

// crowdTables has a table for each backend, with a column for each crowd.
func (r *Report) crowdTables() string {
	var out strings.Builder
	fmt.Fprintf(&out, aboutCrowds, crowdProcesses, r.Results.aboutStorage(), r.Results.machine)
	for _, b := range r.crowdBackends() {
		fmt.Fprintf(&out, "\n## %s\n\n![hand-overs a second by the number of clients](%s)\n\n| | clients |", b.Name, crowdFile(b))
		for _, w := range r.crowds() {
			fmt.Fprintf(&out, " %d |", w.Clients)
		}
		out.WriteString("\n|---|---|" + strings.Repeat("---:|", len(r.crowds())) + "\n")
		var failed strings.Builder
		for _, row := range r.crowds()[0].rows(b) {
			for i, m := range r.crowds()[0].Metrics {
				name := ""
				if i == 0 && row.Kind == Ours {
					name = "**" + row.Name + "**"
				} else if i == 0 {
					name = row.Name
				}
				fmt.Fprintf(&out, "| %s | %s |", name, m.Name)
				for _, w := range r.crowds() {
					figure := "-"
					if c := r.Results.of(b, w, row); c != nil {
						figure = r.figure(b, w, c, row, m)
					}
					fmt.Fprintf(&out, " %s |", figure)
				}
				out.WriteString("\n")
			}
			for _, w := range r.crowds() {
				if c := r.Results.of(b, w, row); c != nil && c.Error != "" {
					fmt.Fprintf(&failed, "\n- %s failed with %d clients: %s.\n", row.Name, w.Clients, strings.ReplaceAll(c.Error, "\n", "; "))
				}
			}
		}
		out.WriteString(failed.String())
	}
	return out.String()
}

// plotCrowds draws a curve for each row of each backend, on logarithmic scales.
func (r *Report) plotCrowds(dir string) error {
	for _, b := range r.crowdBackends() {
		p := plot.New()
		p.Title.Text = b.Name + ": clients that want one name, for 1 ms each time"
		p.X.Label.Text, p.Y.Label.Text = "clients", "hand-overs a second"
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
		p.Add(plotter.NewGrid())
		p.Legend.Top, p.Legend.XOffs = true, -vg.Points(10)
		low := 1000.0
		for i, row := range r.crowds()[0].rows(b) {
			var points plotter.XYs
			for _, w := range r.crowds() {
				if v := r.Results.of(b, w, row).value(w.Plot); v > 0 {
					points = append(points, plotter.XY{X: float64(w.Clients), Y: v})
					low = min(low, v)
				}
			}
			if len(points) == 0 {
				continue
			}
			line, marks, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, line.Dashes, line.Width = colors[row.Kind], plotutil.Dashes(i), vg.Points(1.5)
			marks.Color, marks.Shape, marks.Radius = colors[row.Kind], plotutil.Shape(i), vg.Points(3)
			p.Add(line, marks)
			p.Legend.Add(row.Name, line, marks)
		}
		p.X.Min, p.X.Max = 1, 2000
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(low))), 10_000 // above the curves there is the legend
		if err := p.Save(7*vg.Inch, 4.5*vg.Inch, filepath.Join(dir, crowdFile(b))); err != nil {
			return fmt.Errorf("%s: %w", crowdFile(b), err)
		}
	}
	return nil
}
