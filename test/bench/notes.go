package bench

// Reasons that several rows share.
const (
	heldMemory = "some 640 B of a held lock belong to the client above the drivers, measured with drivers/memory: 384 B for the hold, with its " +
		"request, first lease and release context, some 200 B for its entry in the table of names, 46 B for its identity. The driver's own " +
		"lease is the rest. Already done: times of 8 bytes in place of 24, lease and release context in the allocation of the hold, and no " +
		"goroutine, timer or context for a lock. Owners, re-entry, hand-over and loss by the local clock are kept in what remains."
	sessionCPU = "the watchdog asks each hold once in a TTL when it ends, so that a loss is decided on the local clock, also where a session " +
		"carries all of them: 0.4 µs each, measured with drivers/memory. The floor has nobody who would notice a loss."
	waiterStack = "this is the stack of the caller's goroutine, for the most part (see the column beside it), which Go doubles when calls are " +
		"deeper than 2 kB. What dsync adds is its place in the line."
	shortDrain = "all of it lasts for a tenth of a second, so what a goroutine costs that wakes for the first time, and the collection of the " +
		"memory of 5,000 stacks, count for as much as the locks. Workload 3 has the same hand-over where it lasts."
)

// Notes say what stands in the way of a target, and what was tried. The table has them where the target is missed.
var Notes = map[subject]string{
	{"Redis", "1", "dsync", "p50 µs"}: "the token takes two commands more in the script: TIME, and a SET that keeps the rest of its key's " +
		"time. To count by INCR would take one, and fall when a replica takes over that has not seen the last grants.",
	{"Redis", "1", "dsync, no tokens", "p50 µs"}: "two requests, as the floor. Rows of this workload differ by a tenth and more where there is " +
		"no reason for it: libraries that send the same requests with more work come out below the floor in the same run.",
	{"Redis", "2 (64)", "dsync", "ops/s"}:   tokenCost,
	{"Redis", "2 (512)", "dsync", "ops/s"}:  tokenCost,
	{"Redis", "2 (512)", "dsync", "p99 ms"}: tokenCost,
	{"Redis", "3", "dsync", "hand-overs/s"}: handOverBound,
	{"Redis", "3", "dsync, in order", "hand-overs/s"}: "Redisson's fair lock gives each waiter a channel of its own, and has it take the " +
		"lock by a script that looks after a list, a sorted set of times and the hash, where the floor's release names the next. " +
		"Requests of the fair lock are not combined, for each waits for another channel. A shorter way would not exclude Java's waiters in order.",
	{"Redis", "5", "dsync, in order", "requests/hand-over"}: "each waiter subscribes to a channel of its own, as Redisson has it, for the time " +
		"of its wait, and asks for its place now and then, so that its time in the queue does not run out.",
	{"Redis", "4", "dsync", "p50 µs"}: "Redisson's lock is free between the release and the acquire of the one who was told; the floor's " +
		"release names the successor.",
	{"Redis", "6 (10k)", "dsync", "B/lock"}:  heldMemory,
	{"Redis", "6 (100k)", "dsync", "B/lock"}: heldMemory,
	{"Redis", "7", "dsync", "drained/s"}:     shortDrain,
	{"Redis", "7", "dsync", "B/waiter"}:      waiterStack,
	{"Redlock", "1", "dsync", "p50 µs"}: "requests go through a goroutine for each node, which keeps those of a node in order, and callers " +
		"are woken by the majority of answers. Not profiled against this floor yet.",
	{"Redlock", "1", "dsync", "allocs/op"}: "one more than asked for. The floor, which starts a goroutine for each request, makes four more.",
	{"Redlock", "4", "dsync", "p50 µs"}: "three round trips: the release with its message, the vote of the first node, those of the others. To ask all " +
		"at once would share the votes out among those who wait.",
	{"Redlock", "4", "dsync", "p99/p50"}:       "a waiter that finds the release not yet carried out at a majority asks again after a pause.",
	{"Redlock", "6 (10k)", "dsync", "B/lock"}:  heldMemory,
	{"Redlock", "6 (100k)", "dsync", "B/lock"}: heldMemory,
	{"Redlock", "6 (100k)", "dsync", "client CPU ms"}: "a profile gives a third of it to the writes of names and values to five nodes, a fifth to the " +
		"watchdog's heaps, of which much was cache misses that are gone since, and a tenth to the tables of a batch, which became smaller since.",
	{"Redlock", "7", "dsync", "drained/s"}: shortDrain,
	{"Redlock", "7", "dsync", "B/waiter"}:  waiterStack,
	{"etcd", "1", "dsync", "allocs/op"}: "the transaction has conditions on the seal and the mark of a name beside that on the lock, reads them, and " +
		"puts a value that says who holds the lock: the client library allocates for each of these.",
	{"etcd", "2 (512)", "dsync", "ops/s"}:                  etcdMany,
	{"etcd", "2 (512)", "dsync", "p99 ms"}:                 etcdMany,
	{"etcd", "3", "dsync", "hand-overs/s"}:                 etcdRelease,
	{"etcd", "4", "dsync", "p50 µs"}:                       etcdEvent,
	{"etcd", "5", "dsync", "requests/hand-over"}:           etcdPlace,
	{"etcd", "3", "dsync, HandOver", "hand-overs/s"}:       noBlock,
	{"etcd", "5", "dsync, HandOver", "requests/hand-over"}: noBlock,
	{"etcd", "7", "dsync, HandOver", "drained/s"}:          noBlock,
	{"etcd", "6 (10k)", "dsync", "client CPU ms"}:          etcdCheck,
	{"etcd", "6 (100k)", "dsync", "client CPU ms"}:         etcdCheck,
	{"etcd", "6 (10k)", "dsync", "requests/s"}:             etcdCheck,
	{"etcd", "6 (10k)", "dsync", "B/lock"}:                 heldMemory,
	{"etcd", "6 (100k)", "dsync", "B/lock"}:                heldMemory,
	{"etcd", "7", "dsync, HandOver", "B/waiter"}:           waiterStack,
	{"ZooKeeper", "1", "dsync", "p50 µs"}:                  zkNodes,
	{"ZooKeeper", "1", "dsync", "allocs/op"}:               zkNodes,
	{"ZooKeeper", "2 (64)", "dsync", "ops/s"}:              zkNodes,
	{"ZooKeeper", "2 (512)", "dsync", "ops/s"}:             zkNodes,
	{"ZooKeeper", "2 (512)", "dsync", "p99 ms"}:            zkNodes,
	{"ZooKeeper", "4", "dsync", "p50 µs"}:                  zkList,
	{"ZooKeeper", "5", "dsync", "requests/hand-over"}:      zkList,
	{"ZooKeeper", "6 (10k)", "dsync", "client CPU ms"}:     sessionCPU,
	{"ZooKeeper", "6 (100k)", "dsync", "client CPU ms"}:    sessionCPU,
	{"ZooKeeper", "6 (10k)", "dsync", "B/lock"}:            heldMemory + zkWatch,
	{"ZooKeeper", "6 (100k)", "dsync", "B/lock"}:           heldMemory + zkWatch,
	{"ZooKeeper", "7", "dsync, HandOver", "drained/s"}:     shortDrain,
	{"ZooKeeper", "7", "dsync, HandOver", "B/waiter"}:      waiterStack,
	{"PostgreSQL", "1", "dsync", "p50 µs"}: "a token is a transaction id, so each grant is a transaction that the server writes to its log; a bare " +
		"advisory lock writes nothing.",
	{"PostgreSQL", "2 (512)", "dsync", "p99 ms"}: "512 callers share one session, in groups of up to 256 operations that the server carries out one " +
		"after the other, each with its token. Not profiled yet.",
	{"PostgreSQL", "3", "dsync's driver alone", "hand-overs/s"}:       pgConfirm,
	{"PostgreSQL", "4", "dsync", "p50 µs"}:                            pgConfirm,
	{"PostgreSQL", "5", "dsync's driver alone", "requests/hand-over"}: pgConfirm + " The column counts statements here, also those that go in one request.",
	{"PostgreSQL", "4", "dsync", "p99/p50"}:                           "the server's: that of the floor is larger still.",
	{"PostgreSQL", "3", "dsync", "hand-overs/s"}:                      handOverBound,
	{"PostgreSQL", "6 (10k)", "dsync", "client CPU ms"}:               sessionCPU,
	{"PostgreSQL", "6 (100k)", "dsync", "client CPU ms"}:              sessionCPU,
	{"PostgreSQL", "6 (10k)", "dsync", "B/lock"}:                      heldMemory,
	{"PostgreSQL", "6 (100k)", "dsync", "B/lock"}:                     heldMemory,
	{"PostgreSQL", "7", "dsync", "drained/s"}:                         shortDrain,
	{"PostgreSQL", "7", "dsync", "B/waiter"}:                          waiterStack,
}

const (
	tokenCost = "the server's CPU time, measured by itself in full pipelines: the floor's two scripts take 6.0 µs, a pair in combined requests of " +
		"16 takes 6.2 µs, of 64 5.8 µs, and without tokens 4.7 and 4.4 µs. So to combine saves a quarter, the calls that Redisson's protocol needs " +
		"remain, and the SET of the token takes the quarter back; no other call is above 0.6 µs. What is won beyond that is system calls, of " +
		"which larger requests need fewer. Tried without gain: PEXPIREAT in place of PEXPIRE, GETSET in place of SET. A count by INCR fell " +
		"when a replica took over that had not seen the last grants."
	handOverBound = "64 hand-overs in the process are followed by a release and an acquire at the server, so that others get their turn. That bound " +
		"is what the speed is paid with."
	etcdMany = "requests of many callers are combined; what remains for each is its part of the transaction, which the client library encodes and the " +
		"server decodes one by one. Not profiled against this floor yet."
	zkNodes = "the node of the name is made and removed with that of the holder, so that millions of names leave nothing behind: two changes in each " +
		"request where the floor has one, which the library encodes by reflection. Both go in one request each."
	zkList    = "after the event that the node before it is gone, a waiter lists the queue, since that one may have given up; in the floor nobody gives up."
	pgConfirm = "after a wait a request confirms that the session lives and takes the token; the floor has neither."
	noBlock   = "a lock with tokens is not handed over inside the process: each hold needs a token of its own, etcd's are revisions, and a grant " +
		"brings one. The contract with drivers has no request that takes a new token for a hold that is passed on. The row without tokens " +
		"shows what the hand-over itself would bring."
	etcdRelease = "a release with a waiter of the same process behind it is a transaction that also shows who is next, and the record of the name; the " +
		"floor deletes a key."
	etcdEvent = "the grant is made of the event alone, as in the floor; what is more is one goroutine to wake, as all waiters of a name share a watch."
	etcdPlace = "a waiter with more than seven others before it looks when the one right before it is gone, since that one may have given up; in the " +
		"floor nobody gives up."
	etcdCheck = "all holds are compared with the keys at the server every second, so that a removal is noticed within Info.Detect, 3 s; the floor " +
		"does not notice one. A watch for each hold would cost more than the lock."
	zkWatch = " Each hold has a watch of its node as well, so that a removal is noticed at once."
)
