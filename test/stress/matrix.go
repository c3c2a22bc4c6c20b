package stress

// Why exclusion is not promised.
const (
	losesData  = "Redis forgets what it had"
	losesWrite = "replication is asynchronous: a replica that takes over may not have seen a lock"
	trusts     = "Redis ends holds by its wall clock"
)

// What most backends with one server have.
var single = map[string]string{
	"worker-kill": "", "worker-freeze": "", "worker-clock": "", "cut": "", "slow": "", "black-hole": "", "lost-answers": "", "starved": "",
	"server-restart": "", "server-freeze": "", "session-kill": "",
}

// And those that agree by a majority.
var replicated = map[string]string{
	"worker-kill": "", "worker-freeze": "", "worker-clock": "", "cut": "", "slow": "", "black-hole": "", "lost-answers": "",
	"partition": "", "starved": "", "server-freeze": "", "node-loss": "", "majority-loss": "", "leader-change": "", "session-kill": "",
}

// redisAlone has what Redis forgets on top.
var redisAlone = with(single, map[string]string{"disk-loss": losesData, "flush": losesData, "evict": losesData, "clock": trusts})

// applicable says, for each backend, which faults it can have, and why exclusion is not promised under them, or "".
var applicable = map[string]map[string]string{
	"redisson":      redisAlone,
	"redisson fair": redisAlone,
	"redisson sentinel": {
		"worker-kill": "", "worker-freeze": "", "worker-clock": "", "starved": "", "session-kill": "", "leader-change": losesWrite, "node-loss": losesWrite, "server-freeze": losesWrite,
	},
	"redisson cluster": {
		"worker-kill": "", "worker-freeze": "", "worker-clock": "", "starved": "", "session-kill": "", "leader-change": "", "node-loss": losesWrite, "server-freeze": losesWrite,
	},
	"redlock": {
		"worker-kill": "", "worker-freeze": "", "worker-clock": "", "cut": "", "slow": "", "black-hole": "", "lost-answers": "", "partition": "", "starved": "",
		"server-freeze": "", "node-loss": "", "majority-loss": "", "session-kill": "", "disk-loss": "", "flush": "",
		"flush-majority": losesData, "clock": "", "clock-majority": trusts,
	},
	"etcd":    single,
	"etcd ×3": replicated,
	"zk":      single,
	"zk ×3":   replicated,
	"pglock":  single,
	"memory": {
		"worker-freeze": "", "starved": "", "removed": "", "inside-cut": "", "inside-hang": "", "inside-lost-answers": "",
	},
}

func with(maps ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}
