package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// export is the destination of spans and metrics.
type export struct {
	spans  *sdktrace.TracerProvider
	points *sdkmetric.MeterProvider
	last   func(context.Context) error // before the providers shut down; may be nil
}

// newExport returns an export to the collector that the environment names, as
// in all programs with OpenTelemetry. Without a collector, the export prints to
// w.
func newExport(ctx context.Context, w io.Writer) (*export, error) {
	named := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" ||
		os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" && os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != ""
	if !named {
		return newPrinter(w), nil
	}
	described, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "coupon-shop")), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	spans, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	points, err := otlpmetrichttp.New(ctx)
	if err != nil {
		return nil, errors.Join(err, spans.Shutdown(ctx))
	}
	return &export{
		spans:  sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(described)),
		points: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(points)), sdkmetric.WithResource(described)),
	}, nil
}

// shutdown sends the remaining data.
func (e *export) shutdown(ctx context.Context) error {
	var err error
	if e.last != nil {
		err = e.last(ctx)
	}
	return errors.Join(err, e.spans.Shutdown(ctx), e.points.Shutdown(ctx))
}

// printer prints spans as trees and metrics as a table, at the end of the
// program.
type printer struct {
	w      io.Writer
	reader *sdkmetric.ManualReader

	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
}

func newPrinter(w io.Writer) *export {
	p := &printer{w: w, reader: sdkmetric.NewManualReader()}
	return &export{
		spans:  sdktrace.NewTracerProvider(sdktrace.WithSyncer(p)),
		points: sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.reader)),
		last:   p.print,
	}
}

// ExportSpans implements sdktrace.SpanExporter.
func (p *printer) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spans = append(p.spans, spans...)
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (p *printer) Shutdown(context.Context) error { return nil }

func (p *printer) print(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortStableFunc(p.spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	table := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nspan\ttrace\ttook\tattributes")
	for _, s := range p.spans {
		if !s.Parent().IsValid() {
			p.printSpan(table, s, "")
		}
	}
	fmt.Fprintln(table, "\nmetric\t\tvalue\tattributes")
	if err := p.printPoints(ctx, table); err != nil {
		return err
	}
	return table.Flush()
}

func (p *printer) printSpan(w io.Writer, s sdktrace.ReadOnlySpan, indent string) {
	id := s.SpanContext().TraceID().String()[:8]
	words := attributeWords(s.Attributes())
	for _, l := range s.Links() {
		words = append(words, "-> trace "+l.SpanContext.TraceID().String()[:8])
	}
	took := s.EndTime().Sub(s.StartTime())
	fmt.Fprintf(w, "%s%s\t%s\t%v\t%s\n", indent, s.Name(), id, took, strings.Join(words, " "))
	for _, child := range p.spans {
		if child.Parent().SpanID() == s.SpanContext().SpanID() {
			p.printSpan(w, child, indent+"  ")
		}
	}
}

func (p *printer) printPoints(ctx context.Context, w io.Writer) error {
	var all metricdata.ResourceMetrics
	if err := p.reader.Collect(ctx, &all); err != nil {
		return err
	}
	line := func(m metricdata.Metrics, attributes attribute.Set, value string) {
		fmt.Fprintf(w, "%s\t\t%s\t%s\n", m.Name, value, strings.Join(attributeWords(attributes.ToSlice()), " "))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					line(m, point.Attributes, fmt.Sprint(point.Value))
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					line(m, point.Attributes, fmt.Sprintf("%d, mean %.4f s", point.Count, point.Sum/float64(point.Count)))
				}
			}
		}
	}
	return nil
}

func attributeWords(attributes []attribute.KeyValue) []string {
	var words []string
	for _, a := range attributes {
		words = append(words, fmt.Sprintf("%s=%s", a.Key, a.Value.Emit()))
	}
	return words
}
