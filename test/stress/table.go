package stress

import (
	"fmt"
	"sync"
	"testing"
)

// Table is the results of all cells. It may be filled concurrently.
type Table struct {
	mu      sync.Mutex
	results []*Result
}

func (a *Table) add(t *testing.T, r *Result) {
	t.Logf("%d operations in %v, %d injections; %v; regained after %v", r.Operations, r.Lasted, r.Injected, r.Verdict, r.Regained)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.results = append(a.results, r)
}

func (a *Table) summary() string {
	operations, faults := 0, 0
	for _, r := range a.results {
		operations += r.Operations
		faults += r.Injected
	}
	return fmt.Sprintf("%d cells, %d operations, %d faults", len(a.results), operations, faults)
}

func (a *Table) markdown(Plan) string { return a.summary() }
