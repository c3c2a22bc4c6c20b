package stress

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
)

// Table holds the results of all cells. It may be filled concurrently.
type Table struct {
	mu      sync.Mutex
	results []*Result
}

func (a *Table) add(t *testing.T, r *Result) {
	t.Logf("%d operations in %v, %d injections; %v; %d slices explained; regained after %v", r.Operations, r.Lasted.Round(time.Millisecond),
		r.Injected, r.Verdict, r.Slices, r.Regained.Round(time.Millisecond))
	for i, v := range r.Allowed {
		if i < 2 {
			t.Logf("not promised (%s): %v", r.Unsafe, v)
		}
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.results = append(a.results, r)
}

// Sums holds the totals of all cells.
type Sums struct {
	Cells, Operations, Injected int
	Slices, Inconclusive        int
	StaleTried, StaleAccepted   int
	Violations, Allowed         int
	Reads, Writes, Terms        int
	Permits                     int
}

func (a *Table) sums() (s Sums) {
	for _, r := range a.results {
		s.Cells++
		s.Operations += r.Operations
		s.Injected += r.Injected
		s.Slices += r.Slices
		s.Inconclusive += r.Inconclusive
		s.StaleTried += r.Verdict.StaleWrites
		s.StaleAccepted += r.Verdict.StaleAccepted
		s.Violations += len(r.Failed) + len(r.Left)
		s.Allowed += len(r.Allowed)
		s.Reads += r.Reads
		s.Writes += r.Writes
		s.Terms += r.Terms
		s.Permits += r.Permits
	}
	return s
}

func (a *Table) summary() string {
	s := a.sums()
	return fmt.Sprintf("%d cells: %d operations, %d faults, %d violations; one name read %d times and written %d times; %d grants of permits; %d terms of leaders; %d where the backend promises nothing better; "+
		"%d stale accesses, %d accepted; %d slices explained by porcupine, %d inconclusive",
		s.Cells, s.Operations, s.Injected, s.Violations, s.Reads, s.Writes, s.Permits, s.Terms, s.Allowed, s.StaleTried, s.StaleAccepted, s.Slices, s.Inconclusive)
}

// write writes the table to a file, if path is set.
func (a *Table) write(t *testing.T, path string, p Plan, start time.Time, about string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if path == "" {
		return
	}
	if err := os.WriteFile(path, []byte(a.markdown(p, time.Since(start), about)), 0o644); err != nil {
		t.Error(err)
	}
}

// markdown renders the table: an overview, and a line for each cell.
func (a *Table) markdown(p Plan, lasted time.Duration, about string) string {
	s := a.sums()
	var b strings.Builder
	fmt.Fprintf(&b, "# Faults, measured\n\nThe results of %d cells, each with one backend under one fault: **%d operations** (calls of `Lock`, "+
		"`TryLock` and `Unlock`), **%d faults**, seed %d, in %v. %s\n\n", s.Cells, s.Operations, s.Injected, p.Seed, lasted.Round(time.Second), about)
	fmt.Fprintf(&b, "- %d violations of promises; %d where the backend does not promise exclusion (bold below).\n", s.Violations, s.Allowed)
	fmt.Fprintf(&b, "- %d accesses with a stale token were sent to the fenced resource, which accepted %d.\n", s.StaleTried, s.StaleAccepted)
	fmt.Fprintf(&b, "- In each cell whose backend has readers and writers, all processes also read one name, nine times out of ten, and write it: "+
		"%d reads and %d writes.\n", s.Reads, s.Writes)
	fmt.Fprintf(&b, "- In each cell whose backend has permits, all processes also take one to three of the %d permits of a name: %d grants. The resource adds up "+
		"the permits that holders claim. The sum exceeded the limit only where the backend does not promise exclusion.\n", permitLimit, s.Permits)
	fmt.Fprintf(&b, "- In each cell all processes also campaign for one name by `Elect`, and watch it by `Observe`: %d terms. The judge treats leaders as "+
		"holders, and at the end each observer had to know the leader.\n", s.Terms)
	fmt.Fprintf(&b, "- porcupine found an order that explains %d slices of the histories, and gave up on %d.\n\n", s.Slices, s.Inconclusive)
	b.WriteString("TTL " + TTL.String() + ". The columns of the table at the end:\n\n")
	b.WriteString("- *overlap*: V1, two owners had a lock at the same time, and V4, the loser was notified too late; *tokens*: V3, a token was not\n" +
		"  above an earlier one (in bold: two holders at once may learn of their grants in the other order);\n" +
		"- *lost*: holds whose end was reported before `Unlock`; *margin*: the least time between that and the next grant;\n" +
		"- *reads*, *writes*: the number of grants of the name with readers and writers, – where the backend does not support them; *terms*: of leaders;\n" +
		"- *permits*: the number of grants, and how many of the four were held at a time, including holders that were notified of a loss too late;\n" +
		"- *stale*: writes and reads with old tokens that were tried, all refused;\n" +
		"- *regained*: the longest time from the end of a fault until a lock was granted again; with the bound of the backend.\n\n" +
		"V5 (lost wake-up), V6 (stuck), V7 (left behind) and V8 (illegal result) are 0 in every cell, except those with ✗, which failed or prove nothing.\n\n")
	a.matrix(&b)
	b.WriteString("## Faults\n\n")
	for _, f := range Faults {
		fmt.Fprintf(&b, "- **%s**: %s.\n", f.Name, f.What)
	}
	b.WriteString("\n## Cells\n\n| backend | fault | operations | reads | writes | permits | terms | faults | overlap | tokens | lost | margin | stale | regained | bound |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range a.sorted() {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %d | %s | %s | %d | %s | %d | %v | %v |\n",
			r.Backend, r.Fault, r.Operations, orDash(r.Reads), orDash(r.Writes), r.permits(), orDash(r.Terms), r.Injected,
			r.count(history.RuleOverlap, history.RuleLoss), r.count(history.RuleTokens), r.Verdict.Lost, margin(r.Verdict.LossMargin),
			r.Verdict.StaleWrites, r.Regained.Round(10*time.Millisecond), r.Bound)
	}
	return b.String()
}

func orDash(n int) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprint(n)
}

// permits renders the number of grants of permits, and the number of permits
// held at the same time.
func (r *Result) permits() string {
	if r.Permits == 0 {
		return "–"
	}
	return fmt.Sprintf("%d, %d", r.Permits, r.Most)
}

func margin(s history.Spread) string {
	if s.N == 0 {
		return "–"
	}
	return s.Min.Round(100 * time.Microsecond).String()
}

// count renders the number of violations of some rules, in bold if the backend
// promises to keep these rules.
func (r *Result) count(rules ...history.Rule) string {
	n := 0
	for _, v := range r.Verdict.Violations {
		if slices.Contains(rules, v.Rule) {
			n++
		}
	}
	text := fmt.Sprint(n)
	if r.Unsafe != "" {
		text = "**" + text + "**"
	}
	if r.Err() != nil {
		text += " ✗"
	}
	return text
}

// matrix renders a table of backends and faults. A cell shows what broke
// exclusion, or a dash if the fault does not apply.
func (a *Table) matrix(b *strings.Builder) {
	var backends []string
	at := map[string]*Result{}
	for _, r := range a.sorted() {
		if !slices.Contains(backends, r.Backend) {
			backends = append(backends, r.Backend)
		}
		at[r.Backend+"/"+r.Fault] = r
	}
	b.WriteString("## Overview\n\nOverlaps and fallen tokens in each cell; bold where exclusion is not promised; – where the fault does not apply.\n\n")
	fmt.Fprintf(b, "| fault | %s |\n|---|%s\n", strings.Join(backends, " | "), strings.Repeat("---|", len(backends)))
	for _, f := range Faults {
		fmt.Fprintf(b, "| %s |", f.Name)
		for _, backend := range backends {
			text := "–"
			if r := at[backend+"/"+f.Name]; r != nil {
				text = r.count(history.RuleOverlap, history.RuleLoss, history.RuleTokens)
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// sorted returns the results by backend, with faults in their order.
func (a *Table) sorted() []*Result {
	place := func(fault string) int {
		return slices.IndexFunc(Faults, func(f *Fault) bool { return f.Name == fault })
	}
	all := slices.Clone(a.results)
	slices.SortFunc(all, func(x, y *Result) int {
		if x.Backend != y.Backend {
			return strings.Compare(x.Backend, y.Backend)
		}
		return place(x.Fault) - place(y.Fault)
	})
	return all
}
