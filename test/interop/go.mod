module github.com/go-dsync/dsync/test/interop

go 1.25.0

require (
	github.com/redis/rueidis v1.0.79
	go.opentelemetry.io/otel v1.43.0 // indirect
	go.opentelemetry.io/otel/metric v1.43.0 // indirect
	go.opentelemetry.io/otel/trace v1.43.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)

require (
	github.com/bsm/redislock v0.9.4
	github.com/go-dsync/dsync v0.0.0
	github.com/go-redsync/redsync/v4 v4.17.0
	github.com/go-zookeeper/zk v1.0.4
	github.com/redis/go-redis/v9 v9.21.0
	github.com/redis/rueidis/rueidiscompat v1.0.76
)

replace github.com/go-dsync/dsync => ../..
