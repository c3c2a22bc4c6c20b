package bench

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const introduction = `# dsync beside its peers

` + "`make bench-peers`" + ` writes this page. %s

An operation is one acquire and one release. The figure of a row is the median over the rounds, and *× floor* is the median of its ratios to the
floor in the same round, with the middle half of the rounds in parentheses. The floor is the fewest requests through the same client library,
without a lock library on top. It is not a product, because it survives no failure. Peers have their own settings, except for a TTL of 6 s and no limit on
the number of attempts. Clients and servers have a CPU each. [performance.md](../performance.md) describes the workloads, and test/bench/go.mod has the versions.

*With a disk*, servers flush as their packages do by default: etcd and ZooKeeper before they answer, PostgreSQL and MariaDB at a commit that writes, Redis once a
second (appendonly yes, appendfsync everysec). *Without a disk*, servers keep nothing. Workloads 6 and 8 run without a disk only, in one round.
Contexts can be canceled, except in workloads that end in *Background*, whose context is context.Background().
`

// Report returns the page with one table for each backend.
func (results Results) Report(about string, backends []*Backend) string {
	var out strings.Builder
	fmt.Fprintf(&out, introduction, about)
	for _, b := range backends {
		fmt.Fprintf(&out, "\n## %s\n\n| workload | | with a disk | × floor | without a disk | × floor | and |\n|---|---|---:|---:|---:|---:|---|\n", b.Name)
		var notes []string
		for _, w := range Workloads {
			first := w.Name + ", " + w.Metrics[0].Name
			for _, r := range w.rows(b) {
				disk, memory := results[place{b.Name, w.Name, r.Name, true}], results[place{b.Name, w.Name, r.Name, false}]
				if disk == nil && memory == nil {
					continue
				}
				name := r.Name
				if r.Kind == Ours {
					name = "**" + name + "**"
				}
				fmt.Fprintf(&out, "| %s | %s |%s%s %s |\n", first, name, results.cells(b, w, r, true), results.cells(b, w, r, false), besides(w, disk, memory))
				first = ""
				for i, c := range []*cell{disk, memory} {
					if c != nil && c.Error != nil {
						notes = append(notes, fmt.Sprintf("- %s, %s, %s: %v\n", w.Name, r.Name, []string{"with a disk", "without a disk"}[i], c.Error))
					}
				}
			}
		}
		if len(notes) > 0 {
			out.WriteString("\nErrors:\n\n" + strings.Join(notes, ""))
		}
	}
	return out.String()
}

// cells returns the value of a row and its ratio to the floor.
func (results Results) cells(b *Backend, w *Workload, r *Row, disk bool) string {
	metric := w.Metrics[0].Name
	c, floor := results[place{b.Name, w.Name, r.Name, disk}], results[place{b.Name, w.Name, w.rows(b)[0].Name, disk}]
	text := " " + number(quantile(c.values(metric), 0.5)) + " |"
	ratios := c.ratios(floor, metric)
	if len(ratios) == 0 || c == floor {
		return text + " |"
	}
	text += " " + number(quantile(ratios, 0.5))
	if len(ratios) > 1 {
		text += " (" + number(quantile(ratios, 0.25)) + "–" + number(quantile(ratios, 0.75)) + ")"
	}
	return text + " |"
}

// besides returns the other metrics of a workload, measured with a disk if
// available.
func besides(w *Workload, disk, memory *cell) string {
	var words []string
	for _, m := range w.Metrics[1:] {
		values := disk.values(m.Name)
		if len(values) == 0 {
			values = memory.values(m.Name)
		}
		if len(values) > 0 {
			words = append(words, m.Name+" "+number(quantile(values, 0.5)))
		}
	}
	return strings.Join(words, ", ")
}

// about describes the run, the machine, and the machine's disk if it was used.
func about(size Size, disk bool) (string, error) {
	text := fmt.Sprintf("%s: %d rounds of %v, %d CPUs, %s, %s/%s", time.Now().Format("January 2, 2006"), size.Rounds, size.Slice,
		runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if !disk {
		return text + ".", nil
	}
	flush, err := flushTime()
	return fmt.Sprintf("%s. A flush of 4 KiB takes the disk %v (median).", text, flush), err
}

// flushTime returns the median time of a flush in the directory of the servers.
func flushTime() (time.Duration, error) {
	f, err := os.CreateTemp("", "dsync-flush-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	times := make([]time.Duration, 200)
	for i := range times {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times[i] = time.Since(start)
	}
	return percentile(times, 0.5).Round(time.Microsecond), nil
}

// number formats a value with three significant digits, or as an integer if it
// is 100 or more.
func number(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
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
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if point {
		whole += "." + fraction
	}
	return whole
}
