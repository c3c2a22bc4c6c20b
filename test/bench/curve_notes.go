package bench

// What is said of each curve, and the reason of its slopes.
const (
	aboutHeld = `One client takes N locks, with a TTL of 30 s, and holds them for 10 s, in which each is due to be renewed once. The client's CPU time is that of these 10 s, requests
are those that the server gets (on Redis, runs of scripts), and memory is what is in use after a collection of garbage, less what was there before the first lock. A
client that takes its first locks makes what it needs once, some kB, which is most of it with 10.

Reasons: on Redis CPU time and requests grow with N, as each lock has a TTL of its own at the server; up to 250 are renewed by one run of a script. A
session of etcd or ZooKeeper carries all locks, and PostgreSQL has one for 1,000, so requests do not grow, or by the thousand; on etcd the keys are compared with
the holds each second, so the answer grows, and its CPU time. Where a session carries the locks, the
watchdog asks each hold once in a TTL whether it is over; that may be before these 10 s or after them, so the CPU time there is between none and all of it. Memory for a lock
stays the same, and no lock has a goroutine; each session of PostgreSQL has one. ZooKeeper is asked for a watch once for each lock that is half a second old, before the 10 s.

The floors have 10,000 at most: that of PostgreSQL has all locks in one session, where each takes longer the more there are. etcd, ZooKeeper
and PostgreSQL have 100,000 at most: a server on one CPU takes half a minute for as many and as long to let them go, the heap of this ZooKeeper is 1 GB, and
PostgreSQL keeps locks in shared memory whose size is set when it starts (max_connections times max_locks_per_transaction: 360,000 here).`

	aboutNames = `One client takes N locks of different names, and gives each back at once. What is left of them: the client's memory after a collection of garbage and
its goroutines, with the client still open; keys, nodes or locks at the server, those of them that have no time at which they end, and memory as the server
counts it (the whole of Redis; on etcd the part of the database that is in use; on ZooKeeper the nodes with their paths). With drivers/memory the N names come one by one
over an hour of fake time. On the servers there are 64 callers, and the look comes as soon as they are done, so what ends by itself is still there.

Reasons: nothing that is of a name stays in the process. Redis keeps the last token of each name for an hour, so that tokens rise, and who had the lock for
the TTL; both end by themselves. etcd keeps the history of all keys until it is compacted, that of the floor as well. ZooKeeper's nodes, those of the names
as well, go with their holders.`

	aboutWaiters = `N goroutines of one client wait for a name that another client holds, which then gives it back; each takes the name once. Requests are all that the
server gets, from the start of the clients on. Memory is that of heap and stacks once all wait. CPU time is that of the process from the release to the last
grant, both clients included. The floors, whose waiters are all in a queue at the server, end at 1,000: on ZooKeeper each lists the queue, so requests of
growing length would grow with the square of N.

Reasons: a client waits at the server once for all of its callers, and passes the name on inside the process, and has another turn at the server after 64 of them: two
requests for 64 callers, three on ZooKeeper. On etcd a token is a revision, so each grant is a transaction; without tokens the slope is that of the others. A waiter is a
goroutine with its stack of 4 KiB, and an entry in a list; with drivers/memory, which is first come, first served, each caller waits in the driver, and the stack is of 8 KiB.`

	aboutFree = `The answers of the server come so many milliseconds late, as over a network that takes as long for a round trip. A slope is how many milliseconds an
operation takes longer for each: the round trips on its path. A timer is up to a millisecond late, which is in the slope from 0 to 1.

Reasons: a lock and its release are two requests, one after the other, as in the floor.`

	aboutHandOver = `From the release of one client to the grant of another that waits, measured as above.

Reasons: the release and the message to the next are one round trip. On Redis the lock is free between the two, as Redisson has it, so the next one asks for it: a
second one. On ZooKeeper the next one lists the queue, as the one before may have given up: a second one, too.`
)

// What is said of the curves by the time of a flush.
const (
	aboutFreeFlushed = `Each flush of the servers (fsync, fdatasync) takes so many milliseconds, as those of disks in clouds take one to ten. A slope is how many milliseconds
an operation takes longer for each: the flushes on its path. A lock and its release are one operation.

Reasons: etcd and ZooKeeper answer when what they wrote has been flushed, and a lock and its release are two writes. A lock on PostgreSQL writes nothing that its
answer waits for; with Token the commit of the token is flushed. Redis flushes once a second, in another thread.`

	aboutManyFlushed = `As above. The mean is 64 divided by the operations a second: how long each takes of its goroutine's time.

Reasons: what comes while a flush is under way goes into the next one, so a lock waits for the end of the flush under way and for its own, and so does its release: four. Callers
on PostgreSQL share a session, whose statements wait for the flushes of each other's tokens: a lock, its token and its release twice each.`

	aboutHandOverFlushed = `From the release of one client to the grant of another that waits, measured as above.

Reasons: on etcd and ZooKeeper the next is told when the release has been flushed; what it asks then is only read. On Redis and PostgreSQL nothing is waited for, but
the token where somebody asks for it, after the grant.`
)
