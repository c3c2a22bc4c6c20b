package dsync

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// label is what tells the points of a metric apart, beside the driver. Only the losses have fixed.
type label struct {
	class     string
	key       attribute.Key
	value     string
	errorType string
	fixed     bool
}

// labels are a label in the forms that the instruments take.
type labels struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// labelCache spares the building of the labels, which are few.
type labelCache struct {
	driver string

	mu    sync.RWMutex
	known map[label]*labels
}

// maxLabels bounds the cache against an Options.Class that maps to very many.
const maxLabels = 1024

func (ob *observation) label(key attribute.Key, value, errorType string) *labels {
	return ob.telemetry.labels.get(label{class: ob.class, key: key, value: value, errorType: errorType})
}

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
	if l.key != "" {
		attributes = append(attributes, l.key.String(l.value))
	}
	if l.errorType != "" {
		attributes = append(attributes, keyErrorType.String(l.errorType))
	}
	if l.key == keyCause {
		attributes = append(attributes, keyFixed.Bool(l.fixed))
	}
	o := metric.WithAttributeSet(attribute.NewSet(attributes...))
	made := &labels{[]metric.AddOption{o}, []metric.RecordOption{o}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[label]*labels{}
	}
	if len(c.known) < maxLabels {
		c.known[l] = made
	}
	return made
}
