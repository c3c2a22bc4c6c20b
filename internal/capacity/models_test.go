package capacity

import "time"

const us = time.Microsecond

// micros is a duration of some microseconds, with a fraction.
func micros(f float64) time.Duration { return time.Duration(f * float64(us)) }

// Models of the backends with a waiting order. A table in docs/capacity.md
// lists the source of each constant.
var (
	redisFair = model{name: "Redis, `fair=true`", service: 11 * us, latency: (110 - 11) * us, event: 140 * us, extra: 4, looks: 1, beside: 188 * us, alive: time.Second}

	etcd = model{name: "etcd", service: 54 * us, latency: (185 - 54) * us, event: 145 * us, looks: 1, unseen: 7, perWaiter: micros(0.67), asksQueue: true,
		beside: 740 * us, alive: 400 * time.Millisecond}

	zooKeeper = model{name: "ZooKeeper", service: 54 * us, latency: (240 - 54) * us, extra: 1, looks: 1, perWaiter: micros(0.62), asksQueue: true, beside: 216 * us,
		alive: 1700 * time.Millisecond}

	postgreSQL = model{name: "PostgreSQL", service: 28 * us, latency: (80 - 28) * us, event: 120 * us, extra: 1, beside: 160 * us, alive: 2 * time.Second}
)

// lateness is the delay of the timers in the network that the curves of
// docs/measured.md put between client and server. It is fitted to a free lock
// on Redis with 2 ms.
const lateness = 200 * us

// hot is a model of a name that several callers of one process want, so that
// the process itself hands it over. Only two things count then: a free lock
// (workload 1 of docs/performance.md, without a disk), and the 2.5 µs of a
// hand-over in the process, which is fitted to workload 3 on Redis.
func hot(name string, free time.Duration) model {
	return model{name: name, latency: free / 2, passed: micros(2.5)}
}

// patient is the model with a TTL of 30 s. The requests of a waiting client
// keep its sessions and connections alive, see perWaiting.
func (m model) patient() model {
	for _, l := range loads {
		if l.model == m.name {
			m.alive = time.Duration(float64(time.Second) / l.perWaiting)
		}
	}
	return m
}
