package main

import (
	"context"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync"
)

// opened is the code of docs/observability.md.
func opened(ctx context.Context, url string, spans trace.TracerProvider, points metric.MeterProvider) (*dsync.Client, error) {
	otel.SetTracerProvider(spans) // the program's own providers, set before or after Open
	otel.SetMeterProvider(points)

	client, err := dsync.Open(ctx, url, &dsync.Options{
		Class:  func(name string) string { class, _, _ := strings.Cut(name, "/"); return class }, // orders/42 to orders
		Logger: slog.Default(),
	})
	return client, err
}

var _ = opened
