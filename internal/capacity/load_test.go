package capacity

import (
	"math"
	"time"
)

// load is the load that processes put on a backend, and the memory that they
// use there. All figures are for a TTL of 30 s.
type load struct {
	backend string
	model   string // its name

	// Requests per second of a process that holds ten locks, without renewals
	// by the batch, and of a waiting process. The server counted them for 20
	// processes and 30 s.
	perHolder, perWaiting float64

	batch   int           // locks renewed by one request, each third of the TTL; 0: a session carries all of them
	renewal time.Duration // of server time for each lock in a renewal
	pair    float64       // requests of a lock and its release
	service time.Duration // of server time for a request
	perConn float64       // bytes on the server for each process
	perLock float64       // bytes on the server for each held lock
}

var loads = []load{
	{"Redis", redisFair.name, 0.97, 1.93, 250, micros(3.2), 2, redisFair.service, 22e3, 526},
	{"etcd", etcd.name, 1.2, 0.47, 0, 0, 2, etcd.service, 99e3, 1046},
	{"ZooKeeper", zooKeeper.name, 0.37, 0.57, 0, 0, 2, zooKeeper.service, 171e3, 5633},
	{"PostgreSQL", postgreSQL.name, 0, 0.13, 1000, 0, 2, postgreSQL.service, 1357e3, 1623},
}

const renewals = 10 * time.Second // a third of the TTL

// total is the load of processes on the backend. Each process holds some locks
// permanently and acquires and releases others.
type total struct {
	requests float64 // per second
	busy     float64 // CPUs of the server
	bytes    float64
}

func (l load) of(processes, held int, pairs float64) total {
	n := float64(processes)
	renewing := 0.0
	if l.batch > 0 {
		renewing = n * math.Ceil(float64(held)/float64(l.batch)) / renewals.Seconds()
	}
	requests := n*l.perHolder + renewing + n*pairs*l.pair
	return total{
		requests: requests,
		busy:     requests*l.service.Seconds() + n*float64(held)*l.renewal.Seconds()/renewals.Seconds(),
		bytes:    n*l.perConn + n*float64(held)*l.perLock,
	}
}
