module github.com/go-dsync/dsync/contrib/cronlock

go 1.25.0

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/go-dsync/dsync v0.0.0
	github.com/robfig/cron/v3 v3.0.1
)

require (
	github.com/go-logr/logr v1.4.1 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	go.opentelemetry.io/otel v1.22.0 // indirect
	go.opentelemetry.io/otel/metric v1.22.0 // indirect
	go.opentelemetry.io/otel/trace v1.22.0 // indirect
)

replace github.com/go-dsync/dsync => ../..
