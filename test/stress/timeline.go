package stress

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
)

// Dimensions of a timeline, in pixels.
const (
	perSecond = 120
	laneGap   = 16
	barHeight = 12
	leftEdge  = 160
	topEdge   = 40
)

// colors of workers, in the order of their appearance.
var colors = []string{"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#e08214", "#5e3c99", "#1b7837"}

// draw writes a timeline of the cell if one was requested or the cell failed.
func (c *cell) draw(events []history.Event) {
	if c.Out == "" && c.result.Err() == nil {
		return
	}
	path := filepath.Join(c.pictures(), strings.ReplaceAll(c.bed.name, " ", "-")+"-"+c.fault.Name+".svg")
	if err := os.WriteFile(path, []byte(timeline(events, c.names)), 0o644); err != nil {
		c.t.Error(err)
	}
	if c.result.Err() != nil {
		c.t.Logf("time line: %s", path)
	}
}

// pictures returns the directory for pictures.
func (c *cell) pictures() string {
	dir := c.Out
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "dsync-stress")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// bar is a hold for the time during which its holder believed that it held the
// lock.
type bar struct {
	from, to time.Duration
	client   string
	note     string
	lost     bool
}

// timeline draws the faults and the holds: one band for each name, with a lane
// for each worker.
func timeline(events []history.Event, names []string) string {
	var b strings.Builder
	if len(events) == 0 {
		return "<svg xmlns='http://www.w3.org/2000/svg'/>"
	}
	start, end := events[0].Time, events[len(events)-1].Time
	x := func(t time.Duration) float64 { return leftEdge + (t-start).Seconds()*perSecond }
	var procs []string
	for _, e := range events {
		if e.Client != "" && !slices.Contains(procs, lane(e)) {
			procs = append(procs, lane(e))
		}
	}
	slices.Sort(procs)
	band := len(procs)*barHeight + laneGap
	height := topEdge + len(names)*band + 20
	fmt.Fprintf(&b, "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%d' font-family='sans-serif' font-size='10'>\n", x(end)+20, height)
	drawFaults(&b, events, x, height)
	for i, name := range names {
		top := topEdge + i*band
		fmt.Fprintf(&b, "<text x='4' y='%d' font-weight='bold'>%s</text>\n", top-2, html.EscapeString(name))
		for k, proc := range procs {
			y := top + k*barHeight
			fmt.Fprintf(&b, "<text x='90' y='%d'>%s</text>"+
				"<line x1='%d' y1='%d' x2='%.0f' y2='%[4]d' stroke='#eee'/>\n", y+10, html.EscapeString(proc), leftEdge, y+barHeight, x(end))
			drawBars(&b, bars(events, name, proc), x, y, colors[k%len(colors)])
		}
	}
	for s := 0; time.Duration(s)*time.Second <= end-start; s++ {
		fmt.Fprintf(&b, "<text x='%.0f' y='%d' fill='#888'>%d s</text>\n", x(start+time.Duration(s)*time.Second), height-4, s)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// lane returns the worker of an event.
func lane(e history.Event) string {
	if e.Client == "" {
		return e.Proc
	}
	return strings.ReplaceAll(e.Client, ".last.", " last ")
}

func drawFaults(b *strings.Builder, events []history.Event, x func(time.Duration) float64, height int) {
	on := map[uint64]history.Event{}
	for _, e := range events {
		switch e.Kind {
		case history.KindFaultOn:
			on[e.Call] = e
		case history.KindFaultOff:
			begin := on[e.Call]
			from := x(begin.Time)
			fmt.Fprintf(b, "<rect x='%.1f' y='14' width='%.1f' height='%d' fill='#fdd' stroke='#e99'/><text x='%.1f' y='12'>%s</text>\n",
				from, max(x(e.Time)-from, 1), height-30, from, html.EscapeString(begin.Class+" "+begin.Text))
		}
	}
}

// bars returns the holds of a name by one worker. Short holds that follow each
// other closely are drawn as one.
func bars(events []history.Event, name, proc string) (all []bar) {
	type id struct {
		proc string
		call uint64
	}
	open := map[id]bar{}
	add := func(k id, to time.Duration, lost bool) {
		h, ok := open[k]
		if !ok {
			return
		}
		delete(open, k)
		h.to, h.lost = to, lost
		if n := len(all); n > 0 && !lost && !all[n-1].lost && h.from-all[n-1].to < 4*time.Millisecond && h.to-h.from < 20*time.Millisecond {
			all[n-1].to, all[n-1].note = h.to, all[n-1].note+" …"
			return
		}
		all = append(all, h)
	}
	for _, e := range events {
		if e.Name != name || e.Client == "" || lane(e) != proc {
			continue
		}
		k := id{e.Proc, e.Call}
		switch e.Kind {
		case history.KindGrant:
			open[k] = bar{from: e.Time, client: e.Client, note: fmt.Sprintf("attempt %d, token %d", e.Call, e.Token)}
		case history.KindLose:
			add(k, e.Time, true)
		case history.KindRelease:
			add(k, e.Time, !e.OK)
		}
	}
	for k := range open { // the worker was killed, or frozen until the end
		add(k, events[len(events)-1].Time, true)
	}
	return all
}

func drawBars(b *strings.Builder, all []bar, x func(time.Duration) float64, y int, color string) {
	for _, h := range all {
		stroke := "none"
		if h.lost {
			stroke = "#c00"
		}
		fmt.Fprintf(b, "<rect x='%.1f' y='%d' width='%.1f' height='%d' fill='%s' stroke='%s'><title>%.6f to %.6f, %s</title></rect>\n",
			x(h.from), y, max(x(h.to)-x(h.from), 0.5), barHeight-2, color, stroke, h.from.Seconds(), h.to.Seconds(), html.EscapeString(h.note))
	}
}
