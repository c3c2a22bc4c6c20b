package bench

// Reasons that several rows share.
const (
	heldMemory = "some 690 B of a held lock belong to the client above the drivers, measured with drivers/memory: 416 B for the hold, with its " +
		"request, first lease and release context, some 230 B for its entry in the table of names, 46 B for its identity. The driver's own " +
		"lease is the rest. Already done: times of 8 bytes in place of 24, lease and release context in the allocation of the hold, and no " +
		"goroutine, timer or context for a lock. Owners, re-entry, hand-over and loss by the local clock are kept in what remains."
	sessionCPU = "the watchdog asks each hold once in a TTL when it ends, so that a loss is decided on the local clock, also where a session " +
		"carries all of them: 0.4 µs each, measured with drivers/memory, and some 2 µs where holds are not in the cache any more. In profiles of 10,000 it " +
		"is 86 % of the client's time on ZooKeeper and 75 % on PostgreSQL. The floor has nobody who would notice a loss."
	waiterStack = "this is the stack of the caller's goroutine, for the most part (see the column beside it), which Go doubles when calls are " +
		"deeper than 2 kB. What dsync adds is its place in the line."
	shortDrain = "all of it lasts for a tenth of a second, so what a goroutine costs that wakes for the first time, and the collection of the " +
		"memory of 5,000 stacks, count for as much as the locks. Workload 3 has the same hand-over where it lasts."
)

// Notes say what stands in the way of a target, and what was tried. The table has them where the target is missed.
var Notes = map[subject]string{
	{"Redis", "1", "dsync", "p50 µs"}: "the token takes two commands more in the script: TIME, and a SET that keeps the rest of its key's " +
		"time. To count by INCR would take one, and fall when a replica takes over that has not seen the last grants.",
	{"Redis", "1", "dsync, no tokens", "p50 µs"}: "two requests, as the floor, but written and read by goroutines of rueidis, since its quicker way " +
		"heeds no cancel. Through these goroutines the floor took 141 µs in two runs on an idle machine, where it took 133 without them, and this row 1.05 and 1.09 of that. " +
		"rueidislock has the goroutines too. On a busy machine, where no CPU sleeps between two requests, they cost 1 to 2 %, and this row was at 1.03 to 1.05.",
	{"Redis", "8", "dsync, Read", "p50 µs"}: "the server takes 6 µs more for a Read and its release than in the floor, measured by " +
		"itself in full pipelines. The script looks whether somebody waits to write, takes a token and notes who reads; the release looks whether others " +
		"read who live; and each run makes the functions of its script. The rest is rueidis, whose quicker way does not heed a context: the row with the same " +
		"two requests, bare, has both.",
	{"Redis", "2 (64)", "dsync", "ops/s"}:   tokenCost,
	{"Redis", "2 (512)", "dsync", "ops/s"}:  tokenCost,
	{"Redis", "2 (512)", "dsync", "p99 ms"}: tokenCost,
	{"Redis", "3", "dsync", "hand-overs/s"}: handOverBound,
	{"Redis", "5", "dsync, in order", "requests/hand-over"}: "each waiter subscribes to a channel of its own, as Redisson has it, for the time " +
		"of its wait, and asks for its place now and then, so that its time in the queue does not run out.",
	{"Redis", "4", "dsync", "p50 µs"}: "Redisson's lock is free between the release and the acquire of the one who was told; the floor's " +
		"release names the successor. In 691 turns on a busy machine it was at 1.83 of the floor with tokens, and at 1.68 without, which is how libraries " +
		"without tokens compare: see that row.",
	{"Redis", "6 (10k)", "dsync", "client CPU ms"}: "2.8 to 3.4 µs for a renewal, of which there are 100,000, and 0.5 in the floor, which knows of a lock " +
		"no more than its name and value. A profile gives 47 % to the watchdog (17 % to its heaps), 27 % to the driver's account of each lease, 13 % to " +
		"requests and answers, 10 % to the scheduler. A fifth of all is spent in mutexes that nobody else wants: holds and leases are not in the " +
		"cache any more when they fall due.",
	{"Redis", "6 (100k)", "dsync", "client CPU ms"}: "3 to 4 µs for a renewal, of which there are a million. A profile gives 56 % to the watchdog (32 % to its " +
		"heaps), 31 % to the driver's account of each lease, 9 % to requests and answers; 13 % of all is spent in mutexes that nobody else wants, which " +
		"is waiting for memory. The target is 0.5 µs, what the floor takes for the requests alone.",
	{"Redis", "6 (10k)", "dsync", "requests/s"}: "a run of the script renews up to 250 locks, and each run counts: 20 a second, and one more for a batch that is " +
		"not full; up to 16 runs go in one write. The server serves nobody else during a run, and 250 take it 0.8 ms. The floor has 500 in a run.",
	{"Redis", "6 (10k)", "dsync", "B/lock"}:  heldMemory,
	{"Redis", "6 (100k)", "dsync", "B/lock"}: heldMemory,
	{"Redis", "7", "dsync", "drained/s"}:     shortDrain,
	{"Redis", "7", "dsync", "B/waiter"}:      waiterStack,
	{"Redis", "12", "dsync, Permits", "p50 µs"}: "the scripts compare the limit, have it last longer than the hold, and look at what is over at the release, too, " +
		"before they tell how many are free: the floor does none of it. In the same rounds a free lock was at 1.15 of its own floor.",
	{"Redlock", "1", "dsync", "p50 µs"}: "both send 10 requests, and the client takes as much CPU time (0.95 to 1.05 of the floor's). In turns with the " +
		"floor, 1.12 to 1.18 times its time: about half of what is more goes into waiting for the node that others listen to, beside a majority, at the " +
		"release (1.05 to 1.10 without), 2 to 3 % into the message that the release sends, 3 % into the client above the driver. Tried without gain: to " +
		"ask that node first or last, and to have the goroutine of a node not yield. One request at a time for each node costs the floor nothing.",
	{"Redlock", "1", "dsync", "allocs/op"}: "one more than asked for. The floor, which starts a goroutine for each request, makes four more.",
	{"Redlock", "4", "dsync", "p50 µs"}: "three round trips: the release with its message, the vote of the first node, those of the others. To ask all " +
		"at once would share the votes out among those who wait.",
	{"Redis", "4", "dsync", "p99/p50"}: "3.1 here, and 1.8 in another run of ten rounds two hours before: of some 700 hand-overs in a round these are the slowest seven, and " +
		"the machine has other users.",
	{"Redlock", "4", "dsync", "p99/p50"}:      "a waiter that finds the release not yet carried out at a majority asks again after a pause.",
	{"Redlock", "3", "dsync", "hand-overs/s"}: handOverBound,
	{"Redlock", "6 (10k)", "dsync", "client CPU ms"}: "4.4 µs for a renewal at five nodes, and 1.4 in the floor. A profile gives 35 % to the watchdog (18 % to its " +
		"heaps), 33 % to requests and answers, two thirds of which are names and values for five nodes, 19 % to the driver's account of each lease, 10 % " +
		"to the scheduler; 12 % of all is spent in mutexes that nobody else wants, which is waiting for memory.",
	{"Redlock", "6 (10k)", "dsync", "requests/s"}: "a run of the script renews up to 512 locks: 20 runs for each of five nodes every 2 s are 50 a second, and a batch " +
		"that is not full is one more.",
	{"Redlock", "6 (10k)", "dsync", "B/lock"}:  heldMemory,
	{"Redlock", "6 (100k)", "dsync", "B/lock"}: heldMemory,
	{"Redlock", "6 (100k)", "dsync", "client CPU ms"}: "a profile gives 44 % of it to the watchdog (26 % to its heaps), 31 % to requests and answers, of which 23 % are " +
		"names and values for five nodes, 19 % to the driver's account of each lease; 12 % of all is spent in mutexes that nobody else wants, which is " +
		"waiting for memory.",
	{"Redlock", "7", "dsync", "drained/s"}: shortDrain,
	{"Redlock", "7", "dsync", "B/waiter"}:  waiterStack,
	{"etcd", "1", "dsync", "p50 µs"}: "in turns with the floor 1.06 to 1.08 times its time, in rounds 1.02 to 1.15; concurrency.Mutex, which asks for much the same, " +
		"1.04 to 1.09. Of CPU time the server takes 0.53 ms and the client 0.39 for a lock and its release, 0.50 and 0.34 in the floor: the condition " +
		"that the name has no record and the question who is before cost the server 30 µs and the client 10, which is all of what is more at the " +
		"server; contexts, value and hold in the driver some 20 µs, the client above it 20. Nothing stands out in a profile; to leave out any one of " +
		"these wins 1 to 3 %.",
	{"etcd", "1", "dsync", "allocs/op"}: "27 more than the floor, where concurrency.Mutex has 39 more, in turns. The condition that the name has no record and the question who is before " +
		"are most of them: the library allocates for each part of a request and of an answer. A context below the caller's bounds the first request, and one that is " +
		"shared the second. The rest is the value, the operations, the hold, and those of the client above. 46 less than before.",
	{"etcd", "2 (64)", "dsync", "ops/s"}: "1.58 in the run that was short of the bound, and 2.23 in one on a busy machine. What limits it with 64 " +
		"goroutines was not measured; with 512 it is the client's CPU time, see there.",
	{"etcd", "3", "dsync", "hand-overs/s"}: etcdPass + " In eight turns on a busy machine bare transactions, one after the other and each with a condition and a put, were at " +
		"1.70 of the floor, and the hand-overs at 1.56: nine tenths of what is possible with a transaction for each.",
	{"etcd", "5", "dsync, in order", "requests/hand-over"}: "each caller has a key, which is put, and deleted at the release. Who finds more than seven before it watches the " +
		"one right before alone, and looks when that has gone, since that one may have given up: a third request. The rest, 0.18, has not been counted by " +
		"kind; there are looks every five seconds, and those after a change of the watch. By default one key stands for all callers of a client.",
	{"etcd", "2 (512)", "dsync", "ops/s"}:            etcdMany,
	{"etcd", "2 (512)", "dsync", "p99 ms"}:           etcdMany,
	{"etcd", "3", "dsync, in order", "hand-overs/s"}: etcdKey,
	{"etcd", "4", "dsync", "p50 µs"}:                 etcdEvent,
	{"etcd", "7", "dsync", "drained/s"}:              etcdPass,
	{"etcd", "6 (10k)", "dsync", "client CPU ms"}:    etcdCheck,
	{"etcd", "6 (100k)", "dsync", "client CPU ms"}:   etcdCheck,
	{"etcd", "6 (10k)", "dsync", "requests/s"}:       etcdCheck,
	{"etcd", "6 (10k)", "dsync", "B/lock"}:           heldMemory,
	{"etcd", "6 (100k)", "dsync", "B/lock"}:          heldMemory,
	{"etcd", "7", "dsync", "B/waiter"}:               waiterStack,
	{"ZooKeeper", "1", "dsync", "p50 µs"}:            zkNodes,
	{"ZooKeeper", "1", "dsync", "allocs/op"}:         zkNodes,
	{"ZooKeeper", "2 (64)", "dsync", "ops/s"}:        zkNodes,
	{"ZooKeeper", "2 (512)", "dsync", "ops/s"}:       zkNodes,
	{"ZooKeeper", "2 (512)", "dsync", "p99 ms"}:      zkNodes,
	{"ZooKeeper", "8", "dsync, Read", "p50 µs"}:      zkNodes,
	{"ZooKeeper", "4", "dsync", "p50 µs"}:            zkList,
	{"ZooKeeper", "4", "dsync", "p99/p50"}: "a round has some 70 hand-overs, so this is the slowest of them; in rounds with a thousand it was 3.2, and that of the " +
		"floor 2.2. Each request has its tail, and a hand-over has one more than in the floor, the list: in 1,300 hand-overs in turns with bare requests, on " +
		"a busy machine, it was 7.0, that of one list alone 7.2, of two one after the other 5.6, of the floor 3.4.",
	{"ZooKeeper", "5", "dsync", "requests/hand-over"}:   zkList,
	{"ZooKeeper", "6 (10k)", "dsync", "requests/s"}:     "the library's pings, one every 2 s, as in the floor.",
	{"ZooKeeper", "6 (10k)", "dsync", "client CPU ms"}:  sessionCPU,
	{"ZooKeeper", "6 (100k)", "dsync", "client CPU ms"}: sessionCPU,
	{"ZooKeeper", "6 (10k)", "dsync", "B/lock"}:         heldMemory + zkWatch,
	{"ZooKeeper", "6 (100k)", "dsync", "B/lock"}:        heldMemory + zkWatch,
	{"ZooKeeper", "7", "dsync", "drained/s"}:            shortDrain,
	{"ZooKeeper", "7", "dsync", "B/waiter"}:             waiterStack,
	{"PostgreSQL", "1", "dsync", "p50 µs"}: "a token is a transaction id. In the floor's own statement, in turns with the floor on a busy machine, the id took 4 µs " +
		"beside 21: the server writes a record to its log, and strace saw a signal to its log writer in up to half of such transactions. The settings of " +
		"the session, and a try in place of a wait, took nothing that could be measured (1.00, 1.01), and the server makes as many system calls to receive and " +
		"send. Without tokens the driver was at 1.05 and the client at 1.13, go-pglock at 1.04: 1 µs and 2 µs more of 21. A profile gives 46 % of the client's time to " +
		"system calls, 14 % to the client above the driver, 5 % to allocation; nothing else stands out.",
	{"PostgreSQL", "8", "dsync, Read", "p50 µs"}: "a token of a reader is a transaction id as well, so that it lies between those of the writers before and after it.",
	{"PostgreSQL", "2 (512)", "dsync", "p99 ms"}: "512 callers share one session, in groups of up to 256 operations with one token for all, so what holds the session " +
		"up holds up all of them. They are 2 % of what is done in a round, so the slowest 1 % are those of one such moment: in 12 rounds of 0.4 s on a busy " +
		"machine all of these began within one to three spans of 20 ms. The median was 4 to 9 ms in 11 of them. Without garbage collection it was no " +
		"better, and to share the callers out among more sessions has not been tried.",
	{"PostgreSQL", "3", "dsync's driver alone", "hand-overs/s"}: pgConfirm,
	{"PostgreSQL", "4", "dsync", "p50 µs"}: "from the arrival of the grant to the return of Lock dsync takes 11 µs where the floor takes 2: 3 to read the answer, " +
		"1 to wake the caller, 2 for the state of the driver, 5 in the client above it. The transaction id, which the server writes to its log, makes the " +
		"server answer 16 µs later: see the row without.",
	{"PostgreSQL", "5", "dsync's driver alone", "requests/hand-over"}: pgConfirm + " The column counts statements here, also those that go in one request.",
	{"PostgreSQL", "4", "dsync", "p99/p50"}: "a round has some 70 hand-overs, so this is the slowest of them. In rounds with ten times as many, on a busy " +
		"machine, it was 6.4, and 8.7 in the floor: the server's.",
	{"PostgreSQL", "3", "dsync", "hand-overs/s"}:         handOverBound,
	{"PostgreSQL", "6 (10k)", "dsync", "client CPU ms"}:  sessionCPU,
	{"PostgreSQL", "6 (100k)", "dsync", "client CPU ms"}: sessionCPU,
	{"PostgreSQL", "6 (10k)", "dsync", "requests/s"}: "10 sessions, of 1,000 locks each, ask every third of the TTL, or the server would end them: it is told to end a session " +
		"that it has not heard of for the TTL. With more locks in a session each statement gets slower. The floor asks nothing, so it would not know.",
	{"PostgreSQL", "6 (10k)", "dsync", "B/lock"}:  heldMemory,
	{"PostgreSQL", "6 (100k)", "dsync", "B/lock"}: heldMemory,
	{"PostgreSQL", "7", "dsync", "drained/s"}:     shortDrain,
	{"PostgreSQL", "7", "dsync", "B/waiter"}:      waiterStack,
}

const (
	tokenCost = "the server's CPU time, measured by itself in full pipelines, without a disk and with one: the floor's two scripts take 5.3 and 7.1 µs, a pair in " +
		"combined requests of 16 takes 6.0 and 8.5 µs, and without tokens 3.7 and 5.0 µs. So to combine saves three tenths, the calls that Redisson's " +
		"protocol needs remain, and the token and the text about the holder take it back: 0.8 and 1.2 µs, with a disk 1.3 and 1.8. What is won beyond " +
		"that is system calls, of which larger requests need fewer. Before the requests were made shorter it was 7.4 and 10.1 µs, and 4.7 and 6.1. Tried " +
		"without gain: PEXPIREAT in place of PEXPIRE, PXAT in place of PX, GETSET in place of SET, no pcall. To keep the text with the token would save a SET, and keep " +
		"the text of each name for a week. A count by INCR fell when a replica took over that had not seen the last grants."
	handOverBound = "64 hand-overs in the process are followed by a release and an acquire at the server, so that others get their turn. That bound " +
		"is what the speed is paid with: with one of 6,400 Redlock came to 640,000 a second in place of 104,000, PostgreSQL to 315,000 in place of 145,000, " +
		"on a busy machine. Redis has blocks of 64 tokens at most."
	etcdMany = "the client's CPU time: 40 µs for a lock and its release where the server takes 35, in the floor 62 where the server takes 99, each with a CPU of its " +
		"own. So the server limits the floor, and no more the driver. Of the 40 a profile gives 20 % to the combined transactions, 14 % to the contexts that " +
		"bound requests, 5 % to the values; 40 % of all is allocation and its collection. Tried without gain: to leave the contexts out (2.12 of the floor's, " +
		"2.08 and 2.32 with them)."
	zkNodes = "the node of the name is made and removed with that of the holder, so that millions of names leave nothing behind: two changes in each " +
		"request where the floor has one. Bare groups of two changes through the same library, in turns with the floor, took 1.33 times its time with " +
		"64 goroutines, for 200 µs of the server's CPU time in place of 155, and 1.06 with one; they make 67 allocations in place of 27. The driver took " +
		"1.39 and 1.12 in these turns. To leave the node of the name would cost the server its memory, and hurt the recipes that share it."
	zkList    = "after the event that the node before it is gone, a waiter lists the queue, since that one may have given up; in the floor nobody gives up."
	pgConfirm = "the grant takes a transaction id, which the server writes to its log; the floor writes nothing."
	etcdPass  = "each hold needs a token of its own, and etcd's are revisions, so a hold that is passed on inside the process is a transaction. " +
		"The row without tokens shows the hand-over itself."
	etcdKey = "who asks puts a key by a transaction, on the condition that the name has no record, with a value that says who it is; the floor puts a " +
		"bare key. All of that is passed on by the watch. It was 0.71 while each place and each release came with a look at the queue."
	etcdEvent = "the grant is made of the event alone, as in the floor; what is more is one goroutine to wake, as all waiters of a name share a watch."
	etcdCheck = "all holds are compared with the keys at the server every second, so that a removal is noticed within Info.Detect, 3 s; the floor " +
		"does not notice one. In a profile of 10,000 that is 57 % of the client's time, and the watchdog 13 %. A watch for each hold would cost more than the lock."
	zkWatch = " Each hold has a watch of its node as well, so that a removal is noticed at once."
)
