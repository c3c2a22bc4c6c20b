package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/servers"
)

// redisServer is one Redis server under examination.
type redisServer struct {
	x       *examination
	client  rueidis.Client
	address string
	hello   map[string]string
	info    map[string]string // nil if the user has no right to query it
}

// redisChecks run for each server.
var redisChecks = []func(*redisServer, context.Context){
	(*redisServer).version, (*redisServer).role, (*redisServer).eviction, (*redisServer).persistence, (*redisServer).replicas,
	(*redisServer).connections, (*redisServer).clock, (*redisServer).counts, (*redisServer).readWrite,
}

// seeRedis is the section about the promises of the backend.
func (x *examination) seeRedis() string {
	if isRedlock(x) {
		return "docs/backends/redlock.md#faults"
	}
	return "docs/backends/redis.md#faults"
}

func examineRedis(ctx context.Context, x *examination) bool {
	option, mode, err := servers.RedisOption(x.url, "dsync-doctor")
	if err != nil {
		x.bad(fault, "URL", err.Error(), "see the message", seeTLS)
		return false
	}
	reached := x.reach(ctx, option.InitAddress, option.TLSConfig)
	if len(reached) == 0 {
		return false
	}
	found := false
	if x.url.Scheme != "redisson" || mode == "single" {
		for _, host := range reached {
			option.InitAddress, option.ForceSingleClient = []string{host}, true
			found = x.withRedis(option, host, func(client rueidis.Client) {
				x.redisServer(ctx, client, host)
				x.redisCounter(ctx, client, option)
			}) || found
		}
		return found
	}
	if mode == "sentinel" {
		x.sentinelGroups(ctx, option, reached)
	} else {
		x.clusterGroups(ctx, option, reached)
	}
	option.InitAddress = reached
	return x.withRedis(option, strings.Join(reached, ","), func(client rueidis.Client) {
		if mode == "sentinel" {
			x.redisServer(ctx, client, "the primary")
			x.redisCounter(ctx, client, option)
			return
		}
		for address, node := range client.Nodes() {
			s := &redisServer{x: x, client: node, address: address}
			if s.queryFacts(ctx); !s.isReplica() {
				s.check(ctx)
			}
		}
		x.redisRights(ctx, client, "the cluster")
		x.redisCounter(ctx, client, option)
	})
}

// withRedis calls f with a client and reports whether it could connect.
func (x *examination) withRedis(option rueidis.ClientOption, host string, f func(rueidis.Client)) bool {
	client, err := rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		x.redisLogin(host, err)
		return false
	}
	defer client.Close()
	f(client)
	return true
}

// redisLogin is a finding about a server that accepts a connection but no
// commands.
func (x *examination) redisLogin(host string, err error) {
	text := fmt.Sprintf("%s: %v", host, err)
	switch upper := strings.ToUpper(err.Error()); {
	case strings.Contains(upper, "WRONGPASS"):
		x.bad(fault, "password", text, "put the correct user and password in the URL, with special characters as %XX; or use ACL SETUSER on the server", seePasswords)
	case strings.Contains(upper, "NOAUTH"):
		x.bad(fault, "password", text, "put a password in the URL: redisson://user:password@host", seePasswords)
	case strings.Contains(upper, "NOPERM"):
		x.bad(fault, "rights", text, "ACL SETUSER with the rights that the page lists", seeRights)
	case strings.Contains(upper, "EOF"), strings.Contains(upper, "RESET BY PEER"):
		x.bad(fault, "reach", text, "does the server require TLS? use tls=true in the URL", seeTLS)
	default:
		x.bad(fault, "reach", text, "use a server that speaks the Redis protocol, in the mode that the URL names (mode=)", seeReach)
	}
}

// redisServer checks one server and the user's rights on it.
func (x *examination) redisServer(ctx context.Context, client rueidis.Client, address string) {
	s := &redisServer{x: x, client: client, address: address}
	s.queryFacts(ctx)
	s.check(ctx)
	if !s.isReplica() {
		x.redisRights(ctx, client, address)
	}
}

// queryFacts queries the facts that the checks need.
func (s *redisServer) queryFacts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.x.connect)
	defer cancel()
	b := s.client.B()
	results := s.client.DoMulti(ctx, b.Arbitrary("HELLO").Build(), b.Arbitrary("INFO").Build())
	s.hello = map[string]string{}
	if hello, err := results[0].AsMap(); err == nil {
		for key, value := range hello {
			s.hello[key], _ = value.ToString()
		}
	}
	if text, err := results[1].ToString(); err == nil {
		s.info = map[string]string{}
		for line := range strings.Lines(text) {
			if key, value, is := strings.Cut(strings.TrimSpace(line), ":"); is {
				s.info[key] = value
			}
		}
	}
}

func (s *redisServer) check(ctx context.Context) {
	for _, check := range redisChecks {
		check(s, ctx)
	}
	if s.info == nil && isRedisson(s.x) { // Redlock needs the right: see redisUses
		s.x.bad(note, "INFO", s.address+": the user may not call INFO, so it is unknown whether the server evicts or forgets keys",
			"ACL SETUSER "+s.x.user()+" +info", seeRights)
	}
}

func (x *examination) user() string {
	if x.url.User == nil || x.url.User.Username() == "" {
		return "default"
	}
	return x.url.User.Username()
}

// redisCounter arranges for the token counter to be removed at the end, unless
// it existed before. Unlike dsync's counters, the counters of Redisson's locks
// never expire.
func (x *examination) redisCounter(ctx context.Context, client rueidis.Client, option rueidis.ClientOption) {
	if x.url.Param("fence", "") != "redisson" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	key := servers.RedisKey("redisson_lock_token", x.name)
	// A key removed by an earlier doctor may still exist for a millisecond.
	const absent, ending = -2, 1000
	if left, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || left != absent && (left < 0 || left > ending) {
		return
	}
	x.undo = func() {
		ctx, cancel := context.WithTimeout(context.Background(), cli.CloseLimit)
		defer cancel()
		client, err := rueidis.NewClient(option)
		if client != nil {
			defer client.Close()
		}
		if err == nil {
			// The user may lack the right to DEL.
			_ = client.Do(ctx, client.B().Pexpire().Key(key).Milliseconds(1).Build()).Error()
		}
	}
}

func (s *redisServer) version(context.Context) {
	version := s.hello["version"]
	switch major, minor, known := parseVersion(version); {
	case !known:
		s.x.bad(note, "version", s.address+" does not report its version", "", "")
	case major < 6 || major == 6 && minor < 2:
		s.x.bad(fault, "version", fmt.Sprintf("%s is Redis %s, and the oldest supported version is 6.2", s.address, version),
			"install Redis 6.2 or newer, or Valkey", seeReach)
	default:
		s.x.good("version", "%s is %s %s", s.address, s.hello["server"], version)
	}
}

// isReplica reports whether the server refuses writes.
func (s *redisServer) isReplica() bool {
	return s.hello["role"] == "replica" || s.hello["role"] == "slave" || s.info["role"] == "slave"
}

func (s *redisServer) role(context.Context) {
	if !s.isReplica() {
		return
	}
	cure := "put the address of the primary in the URL, or use mode=sentinel with master=, or mode=cluster, which find the primary"
	if isRedlock(s.x) {
		cure = "run REPLICAOF NO ONE, or put the address of a primary in the URL"
	}
	s.x.bad(fault, "read-only", s.address+" is a replica, which grants no locks", cure, s.x.seeRedis())
}

func (s *redisServer) eviction(context.Context) {
	policy, known := s.info["maxmemory_policy"]
	switch {
	case !known:
	case policy == "noeviction":
		s.x.good("eviction", "%s evicts nothing", s.address)
	default:
		l := fault
		if s.x.url.Param("evict", "") == "allow" {
			l = warning
		}
		s.x.bad(l, "eviction", fmt.Sprintf("%s may evict held locks: its maxmemory-policy is %s", s.address, policy),
			"CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; evict=allow in the URL accepts the risk", s.x.seeRedis())
	}
}

func (s *redisServer) persistence(context.Context) {
	if s.info == nil || s.isReplica() {
		return
	}
	durable := s.x.url.Bool("durable", false)
	switch keeps := s.info["aof_enabled"] == "1"; {
	case isRedlock(s.x) && !durable:
		s.x.good("persistence", "%s needs no persistence: a restarted node does not count for maxttl", s.address)
	case isRedlock(s.x) && !keeps:
		s.x.bad(warning, "persistence", s.address+" keeps no append-only file, although durable=true promises that it forgets nothing when it restarts",
			"set appendonly yes and appendfsync always in redis.conf, or remove durable=true from the URL", s.x.seeRedis())
	case keeps:
		s.x.good("persistence", "%s keeps an append-only file: a restart keeps locks, except those of the last second unless appendfsync is always", s.address)
	default:
		s.x.bad(warning, "persistence", s.address+" keeps no append-only file: it forgets held locks when it restarts",
			"appendonly yes, and appendfsync always, in redis.conf", s.x.seeRedis())
	}
}

func (s *redisServer) replicas(context.Context) {
	n, err := strconv.Atoi(s.info["connected_slaves"])
	if err != nil || s.isReplica() {
		return
	}
	text := fmt.Sprintf("%s has %s", s.address, cli.Plural(n, "replica"))
	switch wanted := s.x.url.Int("waitreplicas", 0, 0, 1000); {
	case isRedlock(s.x) && n > 0:
		s.x.bad(warning, "replicas", text+": a replica that takes over at this address may not have the last locks",
			"disable failover behind the addresses of the URL: the other nodes replace a node that is down", s.x.seeRedis())
	case wanted > n:
		s.x.bad(fault, "replicas", fmt.Sprintf("%s, but a grant waits for waitreplicas=%d", text, wanted),
			"connect more replicas, or lower waitreplicas=", s.x.seeRedis())
	case n > 0 && wanted == 0:
		s.x.bad(warning, "replicas", text+": a replica that takes over may not have the last locks",
			"waitreplicas=1 in the URL makes that unlikely; fencing tokens expose late holders", s.x.seeRedis())
	default:
		s.x.good("replicas", "%s", text)
	}
}

// counts checks whether a Redlock node has been up for long enough to count.
func (s *redisServer) counts(context.Context) {
	up, err := strconv.ParseInt(s.info["uptime_in_seconds"], 10, 64)
	if err != nil || !isRedlock(s.x) || s.isReplica() || s.x.url.Bool("durable", false) {
		return
	}
	const usual = 30 * time.Second
	longest := s.x.url.Duration("maxttl", max(usual, s.x.url.Duration("ttl", usual)))
	if left := longest - time.Duration(up-1)*time.Second; left > 0 {
		s.x.bad(warning, "restart", fmt.Sprintf("%s started %d s ago: it may have forgotten locks, and does not count for %v", s.address, up, longest),
			fmt.Sprintf("wait for %v, or set a shorter maxttl= in the URLs of all programs", left), s.x.seeRedis())
	}
}

func (s *redisServer) connections(context.Context) {
	limit, err1 := strconv.Atoi(s.info["maxclients"])
	used, err2 := strconv.Atoi(s.info["connected_clients"])
	if err1 != nil || err2 != nil {
		return
	}
	s.x.connections(s.address, limit-used, fmt.Sprintf("%d of %d connections", used, limit), "raise maxclients in redis.conf")
}

// connections checks the number of free connections; a process needs one or
// two.
func (x *examination) connections(where string, left int, used, setting string) {
	const few, none = 20, 3
	const see = "docs/capacity.md#one-process"
	text := fmt.Sprintf("%s: %s are in use", where, used)
	cure := "a higher limit: " + setting
	switch {
	case left < none:
		x.bad(fault, "session limit", text+": no connection is left for programs", cure, see)
	case left < few:
		x.bad(warning, "session limit", text+": few are left", cure, see)
	default:
		x.good("session limit", "%s", text)
	}
}

func (s *redisServer) clock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.x.connect)
	defer cancel()
	asked := time.Now()
	answer, err := s.client.Do(ctx, s.client.B().Time().Build()).AsStrSlice()
	answered := time.Now()
	if err != nil || len(answer) != 2 {
		return // the check of rights reports it
	}
	seconds, err1 := strconv.ParseInt(answer[0], 10, 64)
	micros, err2 := strconv.ParseInt(answer[1], 10, 64)
	if err1 == nil && err2 == nil {
		s.x.clock(s.address, time.Unix(seconds, micros*1000), asked, answered, s.x.seeRedis())
	}
}

// keysAtMost limits the number of keys that are searched for read-write locks.
const keysAtMost = 20000

// readWrite looks for read-write locks. With Redisson, a plain Lock does not
// exclude the users of a read-write lock.
func (s *redisServer) readWrite(ctx context.Context) {
	if !isRedisson(s.x) || s.isReplica() || s.x.url.Bool("write", false) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.x.connect)
	defer cancel()
	b, cursor := s.client.B(), uint64(0)
	for seen := 0; seen < keysAtMost; {
		page, err := s.client.Do(ctx, b.Scan().Cursor(cursor).Count(1000).Type("hash").Build()).AsScanEntry()
		if err != nil {
			return // the check of rights reports it
		}
		var asks rueidis.Commands
		for _, key := range page.Elements {
			asks = append(asks, b.Hget().Key(key).Field("mode").Build())
		}
		for i, answer := range s.client.DoMulti(ctx, asks...) {
			if mode, err := answer.ToString(); err == nil && (mode == "read" || mode == "write") {
				s.x.bad(warning, "read-write", fmt.Sprintf("%s has read-write locks, such as %q: a Lock without a mode does not exclude their users in Java, "+
					"whose unlock deletes the hold", s.address, page.Elements[i]),
					"put write=true in the URL of all programs, or use dsync.Write and dsync run --write for such names", "docs/redisson.md#the-read-write-lock")
				return
			}
		}
		if cursor, seen = page.Cursor, seen+1000; cursor == 0 {
			return
		}
	}
}
