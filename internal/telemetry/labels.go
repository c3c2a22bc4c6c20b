package telemetry

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// kind is the description of a lock in metrics.
type kind struct{ class, mode string }

// label distinguishes the points of a metric that have the same driver.
type label struct {
	kind
	key       attribute.Key
	value     string
	errorType string
}

// labels is a label in the forms that the instruments accept.
type labels struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// labelCache keeps the few labels, so that each is built only once.
type labelCache struct {
	driver string
	met    func(kind) // called once for each kind, without locks held

	mu    sync.RWMutex
	known map[label]*labels
	kinds map[kind]bool
}

// maxLabels bounds the cache in case a Config.Class returns very many values.
const maxLabels = 4096

func (c *labelCache) get(l label) *labels {
	c.mu.RLock()
	known := c.known[l]
	c.mu.RUnlock()
	if known != nil {
		return known
	}
	attributes := []attribute.KeyValue{keyDriver.String(c.driver)}
	if l.class != "" {
		attributes = append(attributes, keyClass.String(l.class))
	}
	if l.mode != "" {
		attributes = append(attributes, keyMode.String(l.mode))
	}
	if l.key != "" {
		attributes = append(attributes, l.key.String(l.value))
	}
	if l.errorType != "" {
		attributes = append(attributes, keyErrorType.String(l.errorType))
	}
	o := metric.WithAttributeSet(attribute.NewSet(attributes...))
	made := &labels{[]metric.AddOption{o}, []metric.RecordOption{o}}
	if c.keep(l, made) {
		c.met(l.kind)
	}
	return made
}

// keep caches labels and reports whether their kind is new.
func (c *labelCache) keep(l label, made *labels) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known, c.kinds = map[label]*labels{}, map[kind]bool{}
	}
	if len(c.known) >= maxLabels {
		return false
	}
	c.known[l] = made
	first = !c.kinds[l.kind]
	c.kinds[l.kind] = true
	return first
}
