package etcd

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	modelRuns  = flag.Int("model.runs", 0, "also search the large cases of the model, to the end or for this many runs")
	modelWalks = flag.Int("model.walks", 50, "number of random walks through each case of the model")
)

// modelCases are the searches of the model. The model is the driver itself,
// from Acquire to Close, on a server in memory that replaces the connection of
// the etcd client. Its clients and callers use one name. A step is an
// instantaneous event:
//
//   - a request is carried out; its answer arrives; either is lost, and a
//     request that was given up is carried out late;
//   - a watch begins on the server, and sends its client the next revision,
//     however late; it breaks and is resumed; its next events are compacted
//     before that, and it is canceled;
//   - a caller gives up the lock, in good order or by a seal, or with a mark
//     before that, or passes it to another caller of its client; a waiter gives
//     up waiting;
//   - an operator removes the first key; a client is cut off for longer than
//     its lease lasts; time passes while requests are on their way.
//
// Between two steps everything continues until all goroutines wait. Time passes
// only when there is no other step, or as a step. Requests about leases are not
// steps and are answered immediately unless the client is cut off.
//
// A search takes all steps from all states. If orders differ only in steps of
// two clients that do not meet on the server, it takes only one of these
// orders. It is bounded by the callers and rounds of a case and by the number
// of faults. Small cases are searched to the end each time. The other cases are
// searched with -model.runs, to the end or for that many runs; the log reports
// whether ways were left. In addition, each case is walked at random, with a
// fixed seed.
var modelCases = []modelCase{
	{name: "queue", small: true, callers: []string{"A", "B", "C"}, settled: 3},
	{name: "arrivals", small: true, callers: []string{"A", "B"}},
	{name: "three arrivals", callers: []string{"A", "B", "C"}, settled: 1},
	{name: "rounds", batches: true, callers: []string{"A", "B"}, settled: 2, rounds: 3},
	{name: "rounds of three", callers: []string{"A", "B", "C"}, settled: 3, rounds: 2},
	{name: "breaks", small: true, callers: []string{"A", "B"}, settled: 2, faults: modelFaults{breaks: 1, compactions: 1}},
	{name: "breaks among three", callers: []string{"A", "B", "C"}, settled: 2, faults: modelFaults{breaks: 1, compactions: 1}},
	{name: "breaks and pauses", callers: []string{"A", "B"}, settled: 1, pause: lookAgain,
		faults: modelFaults{breaks: 1, compactions: 1, pauses: 1}},
	{name: "elections", callers: []string{"A", "B"}, settled: 1, pause: lookAgain, faults: modelFaults{elections: 1, pauses: 1}},
	{name: "losses", small: true, callers: []string{"A", "B"}, settled: 1, faults: modelFaults{losses: 1}},
	{name: "losses and rounds", callers: []string{"A", "B"}, settled: 2, rounds: 2, faults: modelFaults{losses: 1}},
	{name: "removals", callers: []string{"A", "B", "C"}, settled: 3, faults: modelFaults{removals: 2}},
	{name: "removals and arrivals", callers: []string{"A", "B"}, settled: 1, faults: modelFaults{removals: 2}},
	{name: "cuts", callers: []string{"A", "B"}, settled: 2, ttl: 5 * time.Second, faults: modelFaults{cuts: 1}},
	{name: "cuts among three", callers: []string{"A", "B", "C"}, settled: 3, ttl: 5 * time.Second, faults: modelFaults{cuts: 1}},
	{name: "pauses", callers: []string{"A", "B"}, settled: 1, pause: 1500 * time.Millisecond, faults: modelFaults{pauses: 1}},
	{name: "cancels", callers: []string{"A", "B", "C"}, settled: 3, faults: modelFaults{cancels: 1}},
	{name: "seal", small: true, callers: []string{"A", "B", "C"}, settled: 3, seals: true},
	{name: "seal and arrivals", callers: []string{"A", "B", "C"}, settled: 1, seals: true},
	{name: "seal and a second call", callers: []string{"A", "B", "B"}, settled: 2, seals: true},
	{name: "mark", small: true, callers: []string{"A", "B"}, settled: 1, marks: true},
	{name: "mark in a queue", callers: []string{"A", "B", "C"}, settled: 3, marks: true},
	{name: "hand-over", small: true, callers: []string{"B", "A", "A"}, settled: 3},
	{name: "hand-over and arrivals", batches: true, callers: []string{"A", "A", "B"}, settled: 2},
	{name: "hand-over and faults", callers: []string{"A", "A", "B"}, settled: 3, faults: modelFaults{losses: 1, breaks: 1}},
	{name: "hand-over and pauses", callers: []string{"A", "A"}, settled: 2, rounds: 2, pause: 60 * time.Millisecond,
		faults: modelFaults{pauses: 1}},
	{name: "two of a client arrive", callers: []string{"B", "A", "A"}, settled: 1},
	{name: "pass", small: true, callers: []string{"A", "A", "B"}, settled: 3, passes: true},
	{name: "pass and arrivals", batches: true, callers: []string{"A", "A", "B", "C"}, settled: 1, passes: true},
	{name: "pass and a mark", callers: []string{"A", "A", "B", "C"}, settled: 4, passes: true, marks: true},
	{name: "pass and faults", callers: []string{"A", "A", "B"}, settled: 3, passes: true,
		faults: modelFaults{losses: 1, breaks: 1, compactions: 1, removals: 1}},
	{name: "leases of their own", callers: []string{"A", "B", "C"}, settled: 2, fixed: true},
	{name: "leases of their own and faults", callers: []string{"A", "A", "B"}, settled: 3, fixed: true,
		faults: modelFaults{losses: 1, breaks: 1, compactions: 1}},
	{name: "tries", small: true, callers: []string{"A", "B", "C"}, settled: 1, tries: true},
	{name: "readers", small: true, callers: []string{"A", "B", "C"}, modes: "wrr", settled: 3, patient: true},
	{name: "readers arrive", small: true, callers: []string{"A", "B", "C"}, modes: "rrr", patient: true},
	{name: "a writer between readers", small: true, callers: []string{"A", "B", "C"}, modes: "rwr", settled: 3},
	{name: "a writer between readers gives up", small: true, callers: []string{"A", "B", "C"}, modes: "rwr", settled: 3, patient: true,
		faults: modelFaults{cancels: 1}},
	{name: "a writer behind readers", small: true, callers: []string{"A", "B", "C"}, modes: "rrw", settled: 3},
	{name: "readers and writers arrive", callers: []string{"A", "B", "C"}, modes: "rwr", settled: 1},
	{name: "readers and rounds", batches: true, callers: []string{"A", "B"}, modes: "rw", settled: 2, rounds: 3},
	{name: "a reader and breaks", small: true, callers: []string{"A", "B"}, modes: "wr", settled: 2, faults: modelFaults{breaks: 1, compactions: 1}},
	{name: "a reader and losses", small: true, callers: []string{"A", "B"}, modes: "rw", settled: 1, faults: modelFaults{losses: 1}},
	{name: "a reader is evicted", small: true, callers: []string{"A", "B"}, modes: "wr", settled: 2, faults: modelFaults{evictions: 1}},
	{name: "readers and removals", callers: []string{"A", "B", "C"}, modes: "wrw", settled: 3, faults: modelFaults{removals: 1, evictions: 1}},
	{name: "a reader and a seal", small: true, callers: []string{"A", "B", "C"}, modes: "xrw", settled: 3, seals: true},
	{name: "a reader and a mark", callers: []string{"A", "B", "C"}, modes: "xrw", settled: 3, marks: true},
	{name: "readers try", small: true, callers: []string{"A", "B", "C"}, modes: "rrr", settled: 1, tries: true},
	{name: "readers and writers try", small: true, callers: []string{"A", "B", "C"}, modes: "rwr", settled: 1, tries: true},
	{name: "a writer passes", batches: true, callers: []string{"A", "A", "B", "C"}, modes: "wwrw", settled: 4, passes: true},
	{name: "readers and cuts", callers: []string{"A", "B", "C"}, modes: "rwr", settled: 3, ttl: 5 * time.Second, faults: modelFaults{cuts: 1}},
	{name: "readers of one client", callers: []string{"A", "B", "B"}, modes: "wrw", settled: 1, rounds: 2},
	{name: "crowd of readers", endless: true, batches: true, callers: []string{"A", "A", "A", "A", "A", "B", "B", "B", "B", "C", "D"},
		modes: "rrrrrrrrrwr", settled: 10},
	{name: "crowd of readers and faults", endless: true, callers: []string{"A", "A", "A", "B", "C", "D"}, modes: "rrwrxr", settled: 4, others: 8,
		faults: modelFaults{breaks: 1, compactions: 1, losses: 1, removals: 1, evictions: 1, cancels: 1}},
	{name: "permits", small: true, callers: []string{"A", "B", "C"}, modes: "212", settled: 3, patient: true},
	{name: "permits arrive", small: true, callers: []string{"A", "B", "C"}, modes: "111", patient: true},
	{name: "permits and arrivals", callers: []string{"A", "B", "C"}, modes: "213", settled: 1},
	{name: "permits of one client", callers: []string{"A", "B", "B"}, modes: "221", settled: 1, rounds: 2},
	{name: "permits behind others give up", callers: []string{"A", "B", "C"}, modes: "231", settled: 3, patient: true,
		faults: modelFaults{cancels: 1}},
	{name: "permits behind a writer", small: true, callers: []string{"A", "B", "C"}, modes: "w21", settled: 3, patient: true},
	{name: "a reader between permits", small: true, callers: []string{"A", "B", "C"}, modes: "2r1", settled: 3},
	{name: "permits and breaks", callers: []string{"A", "B"}, modes: "32", settled: 2, faults: modelFaults{breaks: 1, compactions: 1}},
	{name: "permits behind a writer give up", callers: []string{"A", "B", "C", "D"}, modes: "w221", settled: 4, patient: true,
		faults: modelFaults{cancels: 1}},
	{name: "permits and losses", callers: []string{"A", "B"}, modes: "22", settled: 1, faults: modelFaults{losses: 1}},
	{name: "permits and a seal", small: true, callers: []string{"A", "B", "C"}, modes: "x12", settled: 3, seals: true},
	{name: "permits try", small: true, callers: []string{"A", "B", "C"}, modes: "122", settled: 1, tries: true},
	{name: "a limit is raised", small: true, callers: []string{"A", "B"}, modes: "12", settled: 2, patient: true, faults: modelFaults{raises: 1}},
	{name: "a limit is raised while many come", callers: []string{"A", "B", "C"}, modes: "122", settled: 1,
		faults: modelFaults{raises: 1, breaks: 1, compactions: 1}},
	{name: "crowd for permits and faults", endless: true, callers: []string{"A", "A", "A", "B", "C", "D"}, modes: "1213x2", settled: 4, others: 8,
		faults: modelFaults{breaks: 1, compactions: 1, losses: 1, removals: 1, evictions: 1, cancels: 1}},
	{name: "evictions", callers: []string{"A", "B"}, settled: 2, faults: modelFaults{evictions: 1}},
	{name: "crowd", endless: true, batches: true, callers: []string{"A", "A", "A", "A", "A", "B"}, settled: 6, others: 8},
	{name: "crowd arrives", endless: true, callers: []string{"A", "A", "A", "A", "A", "A", "A", "B"}, settled: 3, others: 8},
	{name: "crowd and faults", endless: true, callers: []string{"A", "A", "A", "A", "A", "B"}, settled: 4, others: 8,
		faults: modelFaults{breaks: 1, compactions: 1, losses: 1, removals: 1, cancels: 1}},
	{name: "crowd that waits for the nearest", callers: []string{"A", "B", "C"}, settled: 1, rounds: 2, others: 8},
	{name: "crowd that waits for the nearest and faults", endless: true, batches: true, callers: []string{"A", "B", "C"}, settled: 2, rounds: 2,
		others: 8, faults: modelFaults{breaks: 1, compactions: 1, losses: 1, removals: 1, evictions: 1, cancels: 1}},
	{name: "crowd of two modes", endless: true, callers: []string{"A", "B", "C", "D"}, modes: "rwrx", settled: 2, rounds: 2, others: 8},
	{name: "seal before many", small: true, callers: []string{"A", "B"}, settled: 1, behind: 8, seals: true},
	{name: "seal before many and breaks", callers: []string{"A", "B", "C"}, settled: 1, behind: 8, seals: true,
		faults: modelFaults{breaks: 1, compactions: 1}},
	{name: "everything", endless: true, batches: true, callers: []string{"A", "B", "C"}, rounds: 3, ttl: 5 * time.Second, pause: time.Second,
		faults: modelFaults{losses: 1, breaks: 2, compactions: 1, removals: 1, cuts: 1, pauses: 2, cancels: 1}},
}

// strays reports whether the same steps may lead to different states: the
// driver pauses for random times, wakes its callers in any order, and begins
// the two watches of waiters for permits, or behind many, in any order.
func (c modelCase) strays() bool {
	return strings.ContainsAny(c.modes, "123") || c.others+c.behind > 0 || c.faults.cuts+c.faults.pauses > 0 || len(slices.Compact(slices.Sorted(slices.Values(c.callers)))) < len(c.callers)
}

func TestModelKeepsItsPromises(t *testing.T) {
	for _, c := range modelCases {
		c.rounds, c.ttl = max(c.rounds, 1), max(c.ttl, 5*time.Second)
		if c.faults.cuts == 0 {
			c.ttl = time.Minute // and so no key is kept alive in the meantime
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.small || *modelRuns > 0 && !c.endless {
				r := c.search(t, *modelRuns)
				t.Logf("%d states, %d runs, %d of which diverged from an earlier run, %d ways left", r.states, r.runs, r.strayed, r.left)
				r.report(t)
				if r.strayed > 0 && !c.strays() {
					t.Error("the driver does not behave the same in a repeated run")
				}
			}
			r := c.walk(t, 1, *modelWalks)
			r.report(t)
		})
	}
}
