package bench

import (
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

var colors = map[Kind]color.Color{
	Floor: color.Gray{Y: 150},
	Peer:  color.RGBA{R: 70, G: 110, B: 180, A: 255},
	Ours:  color.RGBA{R: 200, G: 60, B: 30, A: 255},
}

// mark is one row in a plot.
type mark struct {
	label string
	kind  Kind
	ratio float64
}

// marks returns the rows of a workload with their ratios to the floor, from the bottom up.
func (r *Report) marks(w *Workload) []mark {
	var marks []mark
	for _, b := range r.Backends {
		floor := w.floor(b)
		if floor == nil {
			continue
		}
		for _, row := range w.rows(b) {
			x := r.Results.of(b, w, row).ratio(r.Results.of(b, w, floor), w.Plot)
			if !math.IsNaN(x) && x > 0 {
				marks = append(marks, mark{b.Name + ": " + row.Name, row.Kind, x})
			}
		}
	}
	slices.Reverse(marks)
	return marks
}

// plot draws the ratios to the floor of the rows of all backends, on a logarithmic scale. It does nothing if there are none.
func (r *Report) plot(w *Workload, file string) error {
	p := plot.New()
	p.Title.Text = w.Title
	p.X.Label.Text = w.Plot + ", in multiples of the floor's (" + better(w) + ")"
	marks := r.marks(w)
	if len(marks) == 0 {
		return nil
	}
	labels := make([]string, len(marks))
	low, high := 1.0, 1.0
	points := make(map[Kind]plotter.XYs)
	for i, m := range marks {
		labels[i] = m.label
		low, high = min(low, m.ratio), max(high, m.ratio)
		points[m.kind] = append(points[m.kind], plotter.XY{X: m.ratio, Y: float64(i)})
	}
	line, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.5}, {X: 1, Y: float64(len(marks)) - 0.5}})
	if err != nil {
		return err
	}
	line.Color = colors[Floor]
	p.Add(plotter.NewGrid(), line)
	for _, kind := range []Kind{Floor, Peer, Ours} {
		if len(points[kind]) == 0 {
			continue
		}
		s, err := plotter.NewScatter(points[kind])
		if err != nil {
			return err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: colors[kind], Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
		p.Add(s)
		p.Legend.Add(string(kind), s)
	}
	p.Legend.Top = true
	p.NominalY(labels...)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Min, p.X.Max = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high*1.01)))
	return p.Save(9*vg.Inch, vg.Length(len(marks))*0.22*vg.Inch+1.2*vg.Inch, file)
}

func better(w *Workload) string {
	for _, m := range w.Metrics {
		if m.Name == w.Plot && m.More {
			return "more is better"
		}
	}
	return "less is better"
}
