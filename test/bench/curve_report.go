package bench

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const aboutCurves = `# Curves

Made by ` + "`make bench-%s`" + `, each backend in one run on one machine. The clients share a CPU; the servers have another one.
%s
In parentheses is how many times as large a value is as that of the floor: the fewest requests through the same client library, with no library
of locks on top. It is no product, as nothing survives there that goes wrong.

%s.
`

// curves returns those of which workloads are reported.
func (r *Report) curves() (all []*Curve) {
	for _, w := range r.Workloads {
		if w.Curve != nil && !slices.Contains(all, w.Curve) {
			all = append(all, w.Curve)
		}
	}
	return all
}

// series is one row of a backend in a curve.
type series struct {
	backend *Backend
	row     *Row
	name    string // in the table and the plot
}

// panel is a table and a plot.
type panel struct {
	title, file string
	series      []series
}

// panels returns one for the whole curve, or one for each backend of which something was measured.
func (r *Report) panels(c *Curve) (all []panel) {
	for _, b := range r.Backends {
		var some []series
		for _, row := range c.Points[0].rows(b) {
			if !slices.ContainsFunc(c.Points, func(w *Workload) bool { return r.Results.of(b, w, row) != nil }) {
				continue
			}
			name := row.Name
			if !c.Apart {
				name = b.Name + ", " + name
			}
			some = append(some, series{b, row, name})
		}
		switch {
		case len(some) == 0:
		case c.Apart:
			all = append(all, panel{b.Name, strings.ToLower(b.Name) + ".svg", some})
		case len(all) == 0:
			all = append(all, panel{"", c.Name + ".svg", some})
		default:
			all[0].series = append(all[0].series, some...)
		}
	}
	return all
}

// curveTables has a column for each number, and one for the slopes between them.
func (r *Report) curveTables(curves []*Curve) string {
	var out strings.Builder
	made := "curves"
	switch {
	case curves[0] == Crowds:
		made = "crowds"
	case slices.Contains(Flushes(), curves[0].Points[0]):
		made = "flushes"
	}
	fmt.Fprintf(&out, aboutCurves, made, r.Results.aboutStorage(), r.Results.machine)
	for _, c := range curves {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n", c.Title, c.About)
		for _, p := range r.panels(c) {
			if p.title != "" {
				fmt.Fprintf(&out, "\n### %s\n", p.title)
			}
			fmt.Fprintf(&out, "\n![%s by %s](%s)\n\n| | %s |", c.Points[0].Plot, c.By, p.file, c.By)
			for _, w := range c.Points {
				fmt.Fprintf(&out, " %s |", strconv.FormatFloat(w.At, 'f', -1, 64))
			}
			fmt.Fprintf(&out, " %s |\n|---|---|%s---|\n", c.slopeName(), strings.Repeat("---:|", len(c.Points)))
			var failed []string
			for _, s := range p.series {
				r.curveRows(&out, c, s)
				failed = append(failed, r.failures(c, s)...)
			}
			for _, f := range failed {
				fmt.Fprintf(&out, "\n- %s\n", f)
			}
		}
	}
	return out.String()
}

// curveRows writes a row for each metric of a series that has a value.
func (r *Report) curveRows(out *strings.Builder, c *Curve, s series) {
	name := s.name
	if s.row.Kind == Ours {
		name = "**" + name + "**"
	}
	for _, m := range c.Points[0].Metrics {
		values := r.values(c, s, m.Name)
		if !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) }) {
			continue
		}
		fmt.Fprintf(out, "| %s | %s |", name, m.Name)
		for _, w := range c.Points {
			figure := "-"
			if cell := r.Results.of(s.backend, w, s.row); cell != nil {
				figure = r.figure(s.backend, w, cell, s.row, m)
			}
			fmt.Fprintf(out, " %s |", figure)
		}
		fmt.Fprintf(out, " %s |\n", c.slopes(values))
		name = ""
	}
}

func (r *Report) failures(c *Curve, s series) (all []string) {
	for _, w := range c.Points {
		if cell := r.Results.of(s.backend, w, s.row); cell != nil && cell.Error != "" {
			at := strconv.FormatFloat(w.At, 'f', -1, 64)
			all = append(all, fmt.Sprintf("%s failed with %s %s: %s.", s.name, at, c.By, strings.ReplaceAll(cell.Error, "\n", "; ")))
		}
	}
	return all
}

// values returns a metric at each point; it is not a number where there is none.
func (r *Report) values(c *Curve, s series, metric string) []float64 {
	values := make([]float64, len(c.Points))
	for i, w := range c.Points {
		values[i] = r.Results.of(s.backend, w, s.row).value(metric)
	}
	return values
}

func (c *Curve) slopeName() string {
	if c.Linear {
		return "slopes"
	}
	return "exponents"
}

// slopes tells those between neighbours.
func (c *Curve) slopes(values []float64) string {
	var all []string
	for i := 1; i < len(values); i++ {
		slope := (values[i] - values[i-1]) / (c.Points[i].At - c.Points[i-1].At)
		if !c.Linear {
			slope = math.Log(values[i]/values[i-1]) / math.Log(c.Points[i].At/c.Points[i-1].At)
		}
		text := "-"
		if !math.IsNaN(slope) && !math.IsInf(slope, 0) {
			text = strconv.FormatFloat(math.Round(slope*100)/100+0, 'f', 2, 64) // + 0 makes -0 a 0
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// plotCurves draws a line for each series.
func (r *Report) plotCurves(curves []*Curve, dir string) error {
	for _, c := range curves {
		for _, panel := range r.panels(c) {
			if err := r.plotPanel(c, panel, filepath.Join(dir, panel.file)); err != nil {
				return fmt.Errorf("%s: %w", panel.file, err)
			}
		}
	}
	return nil
}

func (r *Report) plotPanel(c *Curve, panel panel, file string) error {
	p := plot.New()
	p.Title.Text = c.Title
	if panel.title != "" {
		p.Title.Text = panel.title + ": " + c.Title
	}
	metric := c.Points[0].Plot
	p.X.Label.Text, p.Y.Label.Text = c.By, metric
	if !c.Linear {
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(5)
	low, high := math.Inf(1), math.Inf(-1)
	backends := []*Backend{}
	for i, s := range panel.series {
		if !slices.Contains(backends, s.backend) {
			backends = append(backends, s.backend)
		}
		var points plotter.XYs
		for j, v := range r.values(c, s, metric) {
			if v > 0 {
				points = append(points, plotter.XY{X: c.Points[j].At, Y: v})
				low, high = min(low, v), max(high, v)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		paint, dashes, shape := colors[s.row.Kind], plotutil.Dashes(i), plotutil.Shape(i)
		if !c.Apart {
			paint, dashes, shape = color.Color(plotutil.Color(len(backends)-1)), plotutil.Dashes(0), draw.GlyphDrawer(draw.CircleGlyph{})
			if s.row.Kind == Floor {
				dashes = plotutil.Dashes(1)
			}
		}
		line.Color, line.Dashes, line.Width = paint, dashes, vg.Points(1.5)
		marks.Color, marks.Shape, marks.Radius = paint, shape, vg.Points(3)
		p.Add(line, marks)
		p.Legend.Add(s.name, line, marks)
	}
	if !c.Linear && low <= high {
		p.X.Min, p.X.Max = c.Points[0].At/2, c.Points[len(c.Points)-1].At*2
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high))+1) // above the curves there is the legend
	}
	return p.Save(8*vg.Inch, 5.5*vg.Inch, file)
}
