package telemetrytest_test

import (
	"context"
	"testing"

	noopmetric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// observed are clients, by the kind of telemetry that observes them.
func observed() map[string]*dsync.Options {
	return map[string]*dsync.Options{
		"unset":       nil,
		"noop":        {TracerProvider: nooptrace.NewTracerProvider(), MeterProvider: noopmetric.NewMeterProvider()},
		"sampled off": {TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))},
		"sampled":     {TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))},
		"metrics":     {MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))},
	}
}

// TestTelemetryCosts counts the allocations of a free lock and unlock.
func TestTelemetryCosts(t *testing.T) {
	count := func(o *dsync.Options) float64 {
		c := newClient(t, memory.New(nil), o)
		ctx := context.Background()
		return testing.AllocsPerRun(1000, func() {
			l, err := c.Lock(ctx, "x")
			if err == nil {
				err = l.Unlock(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	const bare = 4
	for name, most := range map[string]float64{"unset": bare, "noop": bare, "sampled off": bare + 2} {
		if got := count(observed()[name]); got > most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, most)
		}
	}
}

func BenchmarkTelemetry(b *testing.B) {
	run := func(name string, c func(b *testing.B) *dsync.Client) {
		b.Run(name, func(b *testing.B) {
			client := c(b)
			b.ReportAllocs()
			for b.Loop() {
				l, err := client.Lock(b.Context(), "x")
				if err == nil {
					err = l.Unlock(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for name, o := range observed() {
		run(name, func(b *testing.B) *dsync.Client {
			c, err := dsync.New(memory.New(nil), o)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = c.Close(context.Background()) })
			return c
		})
	}
}
