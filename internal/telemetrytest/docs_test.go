package telemetrytest_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/telemetrytest"
)

var update = flag.Bool("update", false, "write the tables of docs/observability.md")

// Texts of the tables that are not derived from telemetry.
var (
	spanTexts = map[string]string{
		"dsync.acquire":      "a call to `Lock` or `TryLock`",
		"dsync.wait":         "how long a blocked call waited; child of its `dsync.acquire`",
		"dsync.unlock":       "a call to `Unlock`",
		"dsync.force_unlock": "a call to `ForceUnlock`",
		"dsync.renew":        "failing renewals, from the first failure until a renewal succeeds or the lock ends; child of `dsync.acquire`",
		"dsync.expire":       "the expected end of a lease with `ExpireAfter`; child of `dsync.acquire`",
		"dsync.loss":         "the loss of the lock, when the holder is notified; child of `dsync.acquire`",

		"dsync.election.campaign": "a candidacy: from the call to `Elect`, or the end of a term, until the candidate is elected or gives up; parent of its `dsync.acquire`",
		"dsync.election.term":     "the term of a leader, exported when it ends; child of its `dsync.election.campaign`",
	}
	attributeTexts = map[attribute.Key]string{
		"dsync.driver":          "the backend: `Info().Name`",
		"dsync.lock.name":       "the name; left out with `Options.OmitNames`",
		"dsync.lock.owner":      "`Lease.Owner`, or `Owner.ID` without a lease; left out with `Options.OmitOwners`",
		"dsync.lock.token":      "`Lease.Token`, the fencing token, if the backend has tokens",
		"dsync.lock.ttl":        "the requested TTL in seconds",
		"dsync.lock.fixed":      "the lease has `ExpireAfter`, so its end may be expected",
		"dsync.lock.reentrant":  "other leases of the owner held the lock already, or still hold it",
		"dsync.lock.mode":       "the mode in which the name is held or requested; left out for plain locks",
		"dsync.lock.permits":    "the number of held or requested permits",
		"dsync.lock.class":      "the class that `Options.Class` returns for the name",
		"dsync.acquire.try":     "the call was a `TryLock`",
		"dsync.acquire.outcome": "the outcome of the call",
		"dsync.election.end":    "how a term ended; `resigned`: the leader returned, or its context ended",
		"dsync.hold.end":        "how the hold ended; `expired`: as `ExpireAfter` requested",
		"dsync.client.state":    "whether the backend is in reach",
		"dsync.migration.phase": "the phase of the client in `drivers/migrate`",
		"dsync.loss.cause":      "the reason: `expired`, the lease ran out although nothing failed; `forgotten`, see `Options.Debug`; `max_hold`, the lock was held for longer than `MaxHold`; `removed` from the backend; `session_ended`; `unreachable`, the backend was out of reach until the lease ran out, or its connection broke",
		"dsync.renewal.result":  "`not_held`: the lock was gone",
		"error.type":            "the kind of an error, or the cause of a loss",
		"exception.type":        "the same",
		"exception.message":     "the text of the error; left out with `OmitNames` or `OmitOwners`",
	}
)

// TestTelemetryDocs generates the tables of docs/observability.md from all
// reported telemetry.
func TestTelemetryDocs(t *testing.T) {
	tables := map[string]string{}
	synctest.Test(t, func(t *testing.T) {
		o := dsync.Options{}
		ob := observe(&o)
		telemetrytest.Everything(t, o)
		tables["spans"] = spanTable(t, ob)
		tables["metrics"], tables["attributes"] = metricTable(t, ob), attributeTable(t, ob)
	})
	const page = "../../docs/observability.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := text
	for name, table := range tables {
		begin, end := []byte("<!-- table: "+name+" -->\n"), []byte("<!-- end of table -->\n")
		before, rest, ok1 := bytes.Cut(want, begin)
		_, after, ok2 := bytes.Cut(rest, end)
		if !ok1 || !ok2 {
			t.Fatalf("%s has no markers for the table of %s", page, name)
		}
		want = slices.Concat(before, begin, []byte(table), end, after)
	}
	if *update {
		if err := os.WriteFile(page, want, 0o666); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(text, want) {
		t.Errorf("%s is out of date: go test -run TestTelemetryDocs ./internal/telemetrytest -update", page)
	}
}

// set is a set of strings that is displayed in sorted order.
type set map[string]bool

func (s set) String() string {
	words := slices.Sorted(maps.Keys(s))
	for i, w := range words {
		words[i] = "`" + w + "`"
	}
	return strings.Join(words, ", ")
}

func addTo(sets map[string]set, name, word string) {
	if sets[name] == nil {
		sets[name] = set{}
	}
	sets[name][word] = true
}

func spanTable(t *testing.T, ob *observer) string {
	attributes, events, failed := map[string]set{}, map[string]set{}, map[string]bool{}
	for _, s := range ob.spans.GetSpans() {
		for _, a := range s.Attributes {
			addTo(attributes, s.Name, string(a.Key))
		}
		for _, e := range s.Events {
			addTo(events, s.Name, e.Name)
		}
		failed[s.Name] = failed[s.Name] || s.Status.Code != 0
	}
	var b strings.Builder
	b.WriteString("| span | what it is | attributes | events | status Error |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(spanTexts)) {
		fails := "never"
		if failed[name] {
			fails = "possible"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %v | %v | %s |\n", name, spanTexts[name], attributes[name], events[name], fails)
	}
	for name := range attributes {
		if spanTexts[name] == "" {
			t.Errorf("span %s is not described", name)
		}
	}
	return b.String()
}

// metricsOf calls f for the attributes of each point.
func metricsOf(t *testing.T, ob *observer, f func(m metricdata.Metrics, kind string, attributes attribute.Set)) {
	t.Helper()
	for _, m := range ob.metrics(t) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			kind := "up-down counter"
			if data.IsMonotonic {
				kind = "counter"
			}
			for _, p := range data.DataPoints {
				f(m, kind, p.Attributes)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				f(m, "histogram", p.Attributes)
			}
		default:
			t.Errorf("%s has data of type %T", m.Name, m.Data)
		}
	}
}

func metricTable(t *testing.T, ob *observer) string {
	attributes, rows := map[string]set{}, map[string]string{}
	metricsOf(t, ob, func(m metricdata.Metrics, kind string, as attribute.Set) {
		rows[m.Name] = fmt.Sprintf("| `%s` | %s | `%s` | %s |", m.Name, kind, m.Unit, m.Description)
		for _, a := range as.ToSlice() {
			addTo(attributes, m.Name, string(a.Key))
		}
	})
	var b strings.Builder
	b.WriteString("| metric | instrument | unit | what it is | attributes |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "%s %v |\n", rows[name], attributes[name])
	}
	return b.String()
}

// attributeTable lists the values of the metric attributes that have few
// values.
func attributeTable(t *testing.T, ob *observer) string {
	values, kinds := map[string]set{}, map[attribute.Key]attribute.Type{}
	saw := func(a attribute.KeyValue) { kinds[a.Key] = a.Value.Type() }
	for _, s := range ob.spans.GetSpans() {
		for _, a := range s.Attributes {
			saw(a)
		}
		for _, e := range s.Events {
			for _, a := range e.Attributes {
				saw(a)
			}
		}
	}
	metricsOf(t, ob, func(_ metricdata.Metrics, _ string, as attribute.Set) {
		for _, a := range as.ToSlice() {
			saw(a)
			if a.Key != "dsync.driver" && a.Key != "dsync.lock.class" && a.Key != "error.type" && a.Value.Type() == attribute.STRING {
				addTo(values, string(a.Key), a.Value.AsString())
			}
		}
	})
	var b strings.Builder
	b.WriteString("| attribute | type | what it is | values |\n|---|---|---|---|\n")
	for _, key := range slices.Sorted(maps.Keys(kinds)) {
		if attributeTexts[key] == "" {
			t.Errorf("attribute %s is not described", key)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %v |\n", key, strings.ToLower(kinds[key].String()), attributeTexts[key], values[string(key)])
	}
	for key := range attributeTexts {
		if _, ok := kinds[key]; !ok {
			t.Errorf("attribute %s is described, but never seen", key)
		}
	}
	return b.String()
}
