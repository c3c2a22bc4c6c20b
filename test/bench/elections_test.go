package bench

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

var changes = flag.Int("changes", 1, "how often TestElections changes each leader")

// electionSettle is how long the next leader waits before the change, so that it is in line.
const electionSettle = 500 * time.Millisecond

// TestElections ends leaders by SIGTERM, and measures how soon the next ones lead. All ways to elect a leader take turns.
func TestElections(t *testing.T) {
	addrs := map[string]string{}
	var elections []*election
	for _, c := range candidates {
		if addrs[c.Backend] == "" {
			addrs[c.Backend] = electors[c.Backend](t)
		}
		e := &election{TB: t, candidate: c, addr: addrs[c.Backend]}
		if c.Run == nil {
			e.java = testenv.Curator(t, "../interop/java-curator/Candidate.java", "Candidate")
		}
		e.leader = e.run()
		e.awaitLine(e.leader, e.leads())
		elections = append(elections, e)
	}
	for range *changes {
		for _, e := range elections {
			e.change()
		}
	}
	if *asText {
		os.Stdout.WriteString(electionsTable(elections))
	}
}

// election is a series of leaders.
type election struct {
	testing.TB
	*candidate
	addr   string
	java   []string // the command line of a recipe of Curator
	leader *testenv.Process
	took   []time.Duration
}

// run starts a candidate, and returns when it is connected.
func (e *election) run() *testenv.Process {
	e.Helper()
	if e.java == nil {
		p := testenv.Spawn(e, "candidate", candidateVariable+"="+e.String(), electorVariable+"="+e.addr)
		e.awaitLine(p, "ready")
		return p
	}
	p := testenv.Spawn(e, "java", javaVariable+"="+strings.Join(e.java, "\n"), "ADDR="+e.addr, "LOCK_PATH=/"+e.Library, "RECIPE="+e.Library, "ID=candidate", "SESSION=30000")
	e.awaitLine(p, "ready")
	p.Send("a lead")
	return p
}

// leads is what a candidate says when it leads.
func (e *election) leads() string {
	if e.java != nil {
		return "a lead ok"
	}
	return "leads"
}

func (e *election) awaitLine(p *testenv.Process, want string) {
	e.Helper()
	if got := p.Line(); got != want {
		e.Fatalf("%s: got %q, want %q", e, got, want)
	}
}

// change has the next candidate lead.
func (e *election) change() {
	e.Helper()
	next := e.run()
	if err := pause(e.Context(), electionSettle); err != nil {
		e.Fatal(err)
	}
	began := time.Now()
	if err := syscall.Kill(e.leader.Pid(), syscall.SIGTERM); err != nil {
		e.Fatal(err)
	}
	e.awaitLine(next, e.leads())
	e.took = append(e.took, time.Since(began))
	e.leader.Kill() // which may close its connections all the while
	e.leader = next
}

// electionsTable compares each way to elect a leader with dsync on the same backend.
func electionsTable(elections []*election) string {
	var text strings.Builder
	text.WriteString("| backend | candidates | p50 ms | p90 ms | times dsync's p50 |\n|---|---|---|---|---|\n")
	dsyncs := map[string]time.Duration{}
	for _, e := range elections {
		slices.Sort(e.took)
		p50 := percentile(e.took, 0.5)
		if e.Library == "dsync" {
			dsyncs[e.Backend] = p50
		}
		beside := "–"
		if own := dsyncs[e.Backend]; own > 0 {
			beside = fmt.Sprintf("%.1f", float64(p50)/float64(own))
		}
		fmt.Fprintf(&text, "| %s | %s | %.1f | %.1f | %s |\n", e.Backend, e.Library, micros(p50)/1000, micros(percentile(e.took, 0.9))/1000, beside)
	}
	return text.String()
}
