package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestNothingSecretIsReported searches all exported data of a run for secrets.
// The run has a password in its URL and ends with the backend out of reach. The
// secrets are the password and the identities of holds, by which other clients
// could release them.
func TestNothingSecretIsReported(t *testing.T) {
	const password, escaped = testenv.PasswordMark + "/ p@ss", testenv.PasswordMark + "%2F%20p%40ss"
	for _, test := range []struct {
		name  string
		start func(testing.TB) (addr string)
		url   string
	}{
		{"redisson", func(tb testing.TB) string { return testenv.Redis(tb, "--requirepass", password).Addr }, "redisson://:PASSWORD@HOST"},
		{"redlock", func(tb testing.TB) string { return threeRedis(tb, "--requirepass", password) }, "redlock://:PASSWORD@HOST?durable=true"},
		{"zk", func(tb testing.TB) string { return testenv.ZooKeeper(tb).Addr }, "zk://user:PASSWORD@HOST?ttl=2s"},
		{"pglock", func(tb testing.TB) string { return testenv.Postgres(tb).Addr }, "pglock://postgres:PASSWORD@HOST/postgres?force_unlock=true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			hosts, cut, heal := through(t, test.start(t))
			o := &dsync.Options{TTL: 2 * time.Second}
			all := &everything{spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
			all.observe(o)
			client, err := dsync.Open(t.Context(), strings.NewReplacer("PASSWORD", escaped, "HOST", hosts).Replace(test.url), o)
			if err != nil {
				t.Fatal(err)
			}
			secrets := append(lockAndLose(t, client, cut), testenv.PasswordMark)
			heal()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := client.Close(ctx); err != nil {
				t.Error(err)
			}

			exported := all.text(t)
			for _, expected := range []string{"orders/42", "dsync.loss", "exception.message", "dsync.acquires"} {
				if !strings.Contains(exported, expected) {
					t.Errorf("%s is missing from the exported data:\n%s", expected, exported)
				}
			}
			for _, secret := range secrets {
				if strings.Contains(exported, secret) {
					t.Errorf("%q is in the exported data:\n%s", secret, exported)
				}
			}
		})
	}
}

// lockAndLose goes through the events of a lock until the backend is out of
// reach. It returns the identity of the hold.
func lockAndLose(t *testing.T, client *dsync.Client, cut func()) (holds []string) {
	t.Helper()
	const name = "orders/42"
	owner := client.NewOwner()
	lease, err := owner.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := client.Inspect(t.Context(), name); err == nil {
		holds = append(holds, s.Hold)
	}
	if _, err := client.TryLock(t.Context(), name); err == nil {
		t.Error("TryLock of a lock that is held succeeded")
	}
	_ = client.ForceUnlock(t.Context(), name)
	_ = lease.Unlock(t.Context())
	lost, err := owner.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cut()
	<-lost.Done()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := client.TryLock(ctx, name); err == nil {
		t.Error("TryLock of a backend that is out of reach succeeded")
	}
	_ = client.ForceUnlock(ctx, name)
	return holds
}

// everything is the data that a client exports.
type everything struct {
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader
	log    bytes.Buffer // guarded by the handler
}

func (e *everything) observe(o *dsync.Options) {
	o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(e.spans))
	o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(e.reader))
	o.Logger = slog.New(slog.NewTextHandler(&e.log, nil))
}

func (e *everything) text(t *testing.T) string {
	t.Helper()
	var points metricdata.ResourceMetrics
	if err := e.reader.Collect(context.Background(), &points); err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent([]any{e.spans.GetSpans(), points}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + e.log.String()
}
