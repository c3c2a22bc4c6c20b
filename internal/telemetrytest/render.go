package telemetrytest

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync"
)

// RenderSpans returns spans as text, one per line, with children indented and
// siblings ordered by their start. A link is shown as the name of the span and
// the name of its root span. The text of an error, which depends on the
// backend, is shown as an asterisk.
func RenderSpans(stubs tracetest.SpanStubs) string {
	tree := spanTree{byID: map[trace.SpanID]tracetest.SpanStub{}, children: map[trace.SpanID][]tracetest.SpanStub{}}
	for _, s := range stubs {
		tree.byID[s.SpanContext.SpanID()] = s
	}
	for _, s := range stubs {
		parent := s.Parent.SpanID()
		if _, known := tree.byID[parent]; !known {
			parent = trace.SpanID{}
		}
		tree.children[parent] = append(tree.children[parent], s)
	}
	tree.render(trace.SpanID{}, "")
	return tree.text.String()
}

type spanTree struct {
	byID     map[trace.SpanID]tracetest.SpanStub
	children map[trace.SpanID][]tracetest.SpanStub
	text     strings.Builder
}

func (t *spanTree) render(parent trace.SpanID, indent string) {
	spans := t.children[parent]
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int {
		if c := a.StartTime.Compare(b.StartTime); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name) // because in fake time many events coincide
	})
	for _, s := range spans {
		fmt.Fprintf(&t.text, "%s%s%s", indent, s.Name, set(s.Attributes))
		if s.Status.Code != codes.Unset {
			fmt.Fprintf(&t.text, " %s (%s)", s.Status.Code, s.Status.Description)
		}
		for _, l := range s.Links {
			fmt.Fprintf(&t.text, " -> %s", t.path(l.SpanContext))
		}
		t.text.WriteString("\n")
		last := ""
		for _, event := range s.Events {
			line := fmt.Sprintf("%s  ! %s%s\n", indent, event.Name, set(event.Attributes))
			if line != last { // because the number of failed renewals depends on time
				t.text.WriteString(line)
			}
			last = line
		}
		t.render(s.SpanContext.SpanID(), indent+"  ")
	}
}

func (t *spanTree) path(c trace.SpanContext) string {
	s, ok := t.byID[c.SpanID()]
	if !ok || c.TraceID() != s.SpanContext.TraceID() {
		return "a span that is not known"
	}
	if root, ok := t.byID[s.Parent.SpanID()]; ok {
		return s.Name + " of " + root.Name
	}
	return s.Name
}

// RenderPoints returns the points of metrics as text, with histograms as the
// number of their values. Counters that have counted nothing are omitted.
func RenderPoints(all *metricdata.ResourceMetrics) string {
	var lines []string
	add := func(m metricdata.Metrics, attributes attribute.Set, n any) {
		lines = append(lines, fmt.Sprintf("%s%s %v\n", m.Name, set(attributes.ToSlice()), n))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					switch {
					case data.IsMonotonic && p.Value == 0:
					case m.Name == "dsync.renewals":
						add(m, p.Attributes, "+") // because the number depends on time
					default:
						add(m, p.Attributes, p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m, p.Attributes, p.Count)
				}
			default:
				lines = append(lines, fmt.Sprintf("%s: %T\n", m.Name, m.Data))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func set(attributes []attribute.KeyValue) string {
	if len(attributes) == 0 {
		return ""
	}
	var words []string
	for _, a := range attributes {
		value := a.Value.Emit()
		if a.Key == "exception.message" {
			value = "*"
		}
		words = append(words, string(a.Key)+"="+value)
	}
	slices.Sort(words)
	return " {" + strings.Join(words, " ") + "}"
}

// expand inserts the values of the backend and the leases into the text of a
// scenario. @backend, @name and @ttl stand for attributes, and @A for the
// attributes of the lease A. Parts that depend on the backend are marked. " ->?
// " is a link that requires the holder's note. A line that begins with
// "renewed? " is present if the root package renews. A line with "asked? " is
// present if only a renewal notices a removed lock. A line with "unreachable? "
// is present if a lock is lost because its backend is cut off. All clients are
// closed at the end.
func (e *env) expand(text string) string {
	var out []string
	info := e.clients["first"].driver.Info()
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		if mark, rest, ok := strings.Cut(line, "? "); ok && !strings.Contains(mark, " ") {
			if line = rest; mark == "renewed" && info.KeepsAlive || mark == "asked" && info.Detect != 0 ||
				mark == "unreachable" && e.backend.CutOff != "unreachable" {
				continue
			}
		}
		if before, after, ok := strings.Cut(line, " ->? "); ok {
			if line = before; e.backend.Notes {
				line += " -> " + after
			}
		}
		line = strings.NewReplacer("@cutoff", e.backend.CutOff, "@loss", losses[e.backend.CutOff],
			"@forced", e.backend.Forced, "@taken", losses[e.backend.Forced]).Replace(line)
		if before, rest, ok := strings.Cut(line, "{"); ok {
			words, after, _ := strings.Cut(rest, "}")
			line = before + "{" + e.expandSet(strings.Fields(words)) + "}" + after
		}
		out = append(out, line+"\n")
	}
	if strings.HasPrefix(out[0], "dsync.") { // points
		for _, state := range []string{"reachable", "unreachable"} {
			words := e.expandSet([]string{"@backend", "dsync.client.state=" + state})
			out = append(out, "dsync.client.count {"+words+"} 0\n")
		}
		slices.Sort(out)
	}
	return strings.Join(out, "")
}

// losses maps the causes of losses to words.
var losses = map[string]string{
	"removed": "removed", "session_ended": "session ended", "unreachable": "backend out of reach",
}

func (e *env) expandSet(words []string) string {
	lock := []string{"dsync.lock.name=" + e.name}
	backend := "dsync.driver=" + e.clients["first"].Info().Name
	var out []string
	for _, w := range words {
		switch {
		case w == "@backend":
			out = append(out, backend)
		case w == "@name":
			out = append(append(out, backend), lock...)
		case w == "@ttl":
			out = append(out, "dsync.lock.ttl="+attribute.Float64Value(e.backend.TTL.Seconds()).Emit())
		case strings.HasPrefix(w, "@"):
			out = append(append(append(out, backend), lock...), leaseWords(e.leases[w[1:]])...)
		default:
			out = append(out, w)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func leaseWords(l *dsync.Lease) []string {
	if l == nil {
		return []string{"no such lease"}
	}
	words := []string{"dsync.lock.owner=" + l.Owner()}
	if l.Token() != 0 {
		words = append(words, fmt.Sprint("dsync.lock.token=", l.Token()))
	}
	return words
}
