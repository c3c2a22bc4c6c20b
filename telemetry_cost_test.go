package dsync_test

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

// observed are clients by what is observed of them.
func observed() map[string]*dsync.Options {
	return map[string]*dsync.Options{
		"unset":       nil,
		"noop":        {TracerProvider: nooptrace.NewTracerProvider(), MeterProvider: noopmetric.NewMeterProvider()},
		"sampled off": {TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))},
		"sampled":     {TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))},
		"metrics":     {MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))},
	}
}

// TestTelemetryCosts counts the allocations of a free lock and unlock against those of a client that does not even ask for providers.
func TestTelemetryCosts(t *testing.T) {
	count := func(o *dsync.Options, without bool) float64 {
		c := newClient(t, memory.New(nil), o)
		if without {
			dsync.WithoutTelemetry(c)
		}
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
	base := count(nil, true)
	for name, most := range map[string]float64{"unset": 0, "noop": 0, "sampled off": 2} {
		if got := count(observed()[name], false); got > base+most {
			t.Errorf("%s: %v allocations, want at most %v more than the %v without telemetry", name, got, most, base)
		}
	}
}

func BenchmarkTelemetry(b *testing.B) {
	run := func(name string, c func(b *testing.B) *dsync.Client) {
		b.Run(name, func(b *testing.B) {
			client := c(b)
			b.ReportAllocs()
			for b.Loop() {
				lockUnlock(b, client, "x")
			}
		})
	}
	run("none", func(b *testing.B) *dsync.Client {
		c := benchClient(b, nil)
		dsync.WithoutTelemetry(c)
		return c
	})
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
