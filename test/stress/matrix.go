package stress

import (
	"maps"
	"slices"
	"strings"
)

// Reasons why exclusion is not promised.
const (
	losesData  = "Redis forgets what it had"
	losesWrite = "replication is asynchronous: a replica that takes over may not have seen a lock"
	losesLocks = "PostgreSQL does not replicate locks"
	trusts     = "Redis ends holds by its wall clock"
	trustsSQL  = "the database ends holds by its wall clock"
	losesVote  = "a lock that only a bare majority has so far is free when one of these nodes forgets it"
)

// Faults of processes and clocks, of the network, of one server, and of several
// servers that decide by a majority.
const (
	ofProcesses = "worker-kill worker-freeze worker-clock worker-sleep starved crowd-leaves "
	ofNetworks  = "cut slow black-hole half-open lost-answers outage-canceled outage-long refused-commands "
	ofOne       = "server-restart server-freeze session-kill "
	ofMany      = "partition server-freeze node-loss majority-loss session-kill "
)

var (
	single     = safe(ofProcesses + ofNetworks + ofOne)
	replicated = safe(ofProcesses + ofNetworks + ofMany + "servers-apart leader-change")
	redisAlone = with(single, unsafe(losesData, "disk-loss flush evict"), unsafe(trusts, "clock"))
)

// applicable maps each backend to the faults that it can have, and each fault
// to the reason why exclusion is not promised under it, or "". Clients of
// sentinels and clusters learn the addresses of servers from them, so no link
// between them can fail.
var applicable = map[string]map[string]string{
	"redisson":      redisAlone,
	"redisson fair": redisAlone,
	"redisson fifo": redisAlone,
	"redisson sentinel": with(safe(ofProcesses+"session-kill"),
		unsafe(losesWrite, "leader-change node-loss server-freeze servers-apart refused-commands")),
	"redisson cluster": with(safe(ofProcesses+"session-kill leader-change refused-commands"), unsafe(losesWrite, "node-loss server-freeze servers-apart")),
	// Each primary has only one replica, and this replica has every granted
	// lock.
	"redisson sentinel, waitreplicas": safe("servers-apart"),
	"redisson cluster, waitreplicas":  safe("servers-apart"),

	"redlock": with(safe(ofProcesses+ofNetworks+ofMany+"disk-loss"),
		unsafe(losesVote, "flush clock"), unsafe(losesData, "flush-majority"), unsafe(trusts, "clock-majority")),
	"etcd":    single,
	"etcd ×3": replicated,
	"zk":      single,
	"zk ×3":   replicated,
	"pglock":  with(single, safe("clock")),
	"sqllock": with(single, unsafe(trustsSQL, "clock")),

	"redisson behind one address":     safe("one-address"),
	"redlock behind one address":      safe("one-address"),
	"redis-string behind one address": safe("one-address half-open"),
	"etcd ×3 behind one address":      safe("one-address"),
	"zk ×3 behind one address":        safe("one-address"),
	"pglock behind one address":       unsafe(losesLocks, "one-address"),

	"memory": safe("worker-freeze starved crowd-leaves removed inside-cut inside-hang inside-lost-answers"),
}

// short lists the cells of a short run, for backends with more cells in a long
// run.
var short = map[string]string{"sqllock": "worker-freeze lost-answers refused-commands server-restart clock"}

// has reports whether a bed has a cell for a fault.
func (p Plan) has(bed string, f *Fault) bool {
	_, applies := applicable[bed][f.Name]
	some, ok := short[bed]
	return applies && (p.Long || !f.long && (!ok || slices.Contains(strings.Fields(some), f.Name)))
}

// safe returns faults under which everything is promised.
func safe(faults string) map[string]string { return unsafe("", faults) }

// unsafe returns faults under which exclusion is not promised, and the reason.
func unsafe(why, faults string) map[string]string {
	all := map[string]string{}
	for _, f := range strings.Fields(faults) {
		all[f] = why
	}
	return all
}

func with(all ...map[string]string) map[string]string {
	sum := map[string]string{}
	for _, m := range all {
		maps.Copy(sum, m)
	}
	return sum
}
