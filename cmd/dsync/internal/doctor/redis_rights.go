package doctor

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/servers"
)

const seeRights = "docs/security.md#rights"

// redisUse is an operation on locks, with requests that test its rights one by
// one. The words $lock, $fence and so on stand for keys. The key $lock holds a
// string for a few seconds. Commands for other types of keys therefore fail
// after the check of rights, and change nothing.
type redisUse struct {
	what    string
	without string // effect of missing rights; "" if the operation fails
	level   level  // severity of a finding that a right is missing
	when    func(x *examination) bool
	try     []string
}

// tryScript has no effect.
const tryScript = "return{}"

var redisUses = []redisUse{
	{"locks", "", fault, isRedisson, []string{
		"EVAL " + tryScript + " 1 $lock", "EVALSHA $sha 1 $lock", "HEXISTS $lock f", "HSET $lock f 1", "HDEL $lock f", "PEXPIRE $lock 5000",
		"PTTL $lock", "SET $lock 1 PX 5000", "TIME", "PUBLISH $channel 0",
	}},
	{"fencing tokens", "", fault, func(x *examination) bool { return isRedisson(x) && x.url.Bool("fenced", true) }, []string{"PTTL $fence"}},
	{"messages to waiters", "waiters try every 5 s", note, isRedisson, []string{"SUBSCRIBE $channel"}},
	{"tickets of waiters", "all of them try after each release", note, isRedisson, []string{"PTTL $turn", "HMGET $lock f"}},
	{"pings", "the server records each in its ACL LOG", note, nil, []string{"PING"}},
	{"fair=true", "", fault, func(x *examination) bool { return isRedisson(x) && x.url.Bool("fair", false) }, []string{
		"PTTL $queue", "PTTL $times", "HLEN $lock", "LINDEX $lock 0", "LLEN $lock", "LPOS $lock x", "LPUSH $lock x", "LRANGE $lock 0 0",
		"LREM $lock 0 x", "RPUSH $lock x", "ZADD $lock 1 x", "ZMSCORE $lock x", "ZREM $lock x", "ZSCORE $lock x",
	}},
	{"fence=redisson", "", fault, func(x *examination) bool { return isRedisson(x) && x.url.Param("fence", "") == "redisson" }, []string{
		"PTTL $counter", "INCRBY $lock 1",
	}},
	{"Read and Write", "", warning, isRedisson, []string{"PTTL $readers", "PTTL $intent", "PUBLISH $readwrite 0", "HGET $lock f", "HRANDFIELD $lock", "DEL $gone"}},
	{"Permits", "", warning, isRedisson, []string{
		"PTTL $readers", "PUBLISH $permits 0", "GET $lock", "DEL $gone", "INCRBY $lock 1", "PERSIST $gone", "ZADD $lock 1 x", "ZCARD $lock", "ZCOUNT $lock 0 0",
		"ZMSCORE $lock x", "ZRANGE $lock 0 0", "ZREM $lock x", "ZREMRANGEBYSCORE $lock 0 0",
	}},
	{"show and release", "", note, isRedisson, []string{"HLEN $lock", "DEL $gone", "GET $lock", "HGET $lock f", "HGETALL $lock"}},
	{"ls", "", note, isRedisson, []string{"SCAN 0 COUNT 1", "HGET $lock f", "HRANDFIELD $lock"}},
	{"locks", "", fault, isRedlock, []string{
		"INFO", "SET $lock 1 PX 5000", "GET $lock", "DEL $gone", "PEXPIREAT $lock 1", "PTTL $gone", "TIME", "EVAL " + tryScript + " 1 $lock",
		"EVALSHA $sha 1 $lock", "SCRIPT LOAD " + tryScript, "CLIENT ID", "CLIENT KILL ID 0", "CLIENT SETNAME dsync-doctor",
	}},
	{"messages to waiters", "waiters try from time to time", note, isRedlock, []string{"PUBLISH $redlock 0", "SUBSCRIBE $redlock"}},
}

func isRedisson(x *examination) bool { return x.url.Scheme == "redisson" }
func isRedlock(x *examination) bool  { return !isRedisson(x) }

// makes are commands that can create a key. A trial of such a command uses a
// key to which the previous request has written a string, so the server refuses
// the command. If the string expires too early, the request after the trial
// sets an expiry on the new key.
var makes = []string{"HSET", "LPUSH", "RPUSH", "ZADD", "INCRBY"}

const (
	tryMake = "SET $lock text PX 5000"
	tryEnd  = "PEXPIRE $lock 5000"
)

// fencePrefix is the prefix of the keys of token sequences, which many names
// share.
const fencePrefix = "dsync_fence:"

// redisKeys returns the replacements for the words of redisUse, for a lock that
// no client holds.
func (x *examination) redisKeys() map[string]string {
	lock := x.name + ":" + strings.ToLower(rand.Text()[:12])
	of := func(prefix string) string { return servers.RedisKey(prefix, lock) }
	fence := fencePrefix
	if tenant := x.url.Param("tenant", ""); tenant != "" {
		fence += tenant + ":"
	}
	sha := sha1.Sum([]byte(tryScript))
	return map[string]string{
		"$lock": lock, "$gone": lock + ":gone", "$fence": fence + "{0}", "$turn": of("dsync_turn"), "$intent": of("dsync_intent"),
		"$queue": of("redisson_lock_queue"), "$times": of("redisson_lock_timeout"), "$counter": of("redisson_lock_token"),
		"$readers": "{" + lock + "}:x", "$channel": of("redisson_lock__channel"), "$readwrite": of("redisson_rwlock"), "$permits": of("redisson_sc"),
		"$redlock": "dsync_redlock:" + lock, "$sha": hex.EncodeToString(sha[:]),
	}
}

// redisRights tests the user's rights on one server, or on the cluster node
// that owns the name.
func (x *examination) redisRights(ctx context.Context, client rueidis.Client, where string) {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	t := redisTrial{client, x.redisKeys(), x.prefix()}
	defer t.remove()
	made := t.lacks(ctx, tryMake)[0] == ""
	var all []string // the uses for which the user has all rights
	for _, use := range redisUses {
		if use.when != nil && !use.when(x) {
			continue
		}
		var missing, untried []string
		for _, line := range use.try {
			word, _, _ := strings.Cut(line, " ")
			right := ""
			switch makesKey := slices.Contains(makes, word); {
			case makesKey && !made:
				untried = append(untried, "+"+strings.ToLower(word))
			case makesKey:
				right = t.lacks(ctx, tryMake, line, tryEnd)[1]
			default:
				right = t.lacks(ctx, line)[0]
			}
			if right != "" && !slices.Contains(missing, right) {
				missing = append(missing, right)
			}
		}
		if ctx.Err() != nil {
			x.bad(fault, "rights", fmt.Sprintf("%s: %s: unknown, because there was no answer in time", where, use.what), "use a server that answers, or a longer --connect", seeRights)
			return
		}
		if len(missing)+len(untried) == 0 {
			all = append(all, use.what)
			continue
		}
		x.redisLacks(where, use, missing, untried)
	}
	if len(all) > 0 {
		x.good("rights", "%s: the user has the rights for %s", where, strings.Join(all, ", "))
	}
}

// redisLacks is a finding about rights that are missing or were not tried.
func (x *examination) redisLacks(where string, use redisUse, missing, untried []string) {
	text := fmt.Sprintf("%s: %s: the user lacks %s", where, use.what, strings.Join(missing, " "))
	if len(missing) == 0 {
		text = fmt.Sprintf("%s: %s: not all rights could be tried", where, use.what)
	}
	if len(untried) > 0 {
		text += "; not tried without +set: " + strings.Join(untried, " ")
	}
	if use.without != "" {
		text += "; without it, " + use.without
	}
	rights := append(missing, untried...)
	cure := fmt.Sprintf("ACL SETUSER %s %s", x.user(), strings.Join(rights, " "))
	if x.name == doctorName && slices.ContainsFunc(rights, func(r string) bool { return r[0] != '+' }) {
		cure += " ; or, if the user may only use certain names, --name with one of them, such as lk:doctor"
	}
	x.bad(use.level, "rights", text, cure, seeRights)
}

// prefix is the prefix of the programs' lock names, taken from --name, or
// empty.
func (x *examination) prefix() string {
	if x.name == doctorName {
		return ""
	}
	return x.name[:strings.LastIndexAny(x.name, ":/")+1]
}

// redisTrial sends requests that test rights.
type redisTrial struct {
	client rueidis.Client
	keys   map[string]string
	prefix string // prefix of the names that the rights must cover
}

// remove removes the trial key, even after an interrupted trial. If the user
// lacks the rights for both requests, the key expires after a few seconds.
func (t redisTrial) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), cli.CloseLimit)
	defer cancel()
	t.lacks(ctx, "PEXPIRE $lock 1", "DEL $lock")
}

// lacks sends several requests in one batch. For each request it returns the
// missing right, or "". Any response except a permission error proves the
// right.
func (t redisTrial) lacks(ctx context.Context, lines ...string) []string {
	var asked []askedFor
	var requests []rueidis.Completed
	for _, line := range lines {
		if channel, is := strings.CutPrefix(line, "SUBSCRIBE "); is {
			a := askedFor{name: "SUBSCRIBE", channel: t.keys[channel]}
			return []string{t.right(a, t.subscribe(ctx, a.channel))}
		}
		request, a := t.request(line)
		asked, requests = append(asked, a), append(requests, request)
	}
	var rights []string
	for i, result := range t.client.DoMulti(ctx, requests...) {
		rights = append(rights, t.right(asked[i], result.Error()))
	}
	return rights
}

// askedFor returns the object that a request needs rights for.
type askedFor struct{ name, key, channel string }

// request builds the request for a line of redisUses.
func (t redisTrial) request(line string) (rueidis.Completed, askedFor) {
	words := strings.Fields(line)
	a := askedFor{name: words[0]}
	if words[0] == "SCRIPT" || words[0] == "CLIENT" {
		a.name += "|" + words[1]
	}
	request := t.client.B().Arbitrary(words[0])
	for _, word := range words[1:] {
		switch value, is := t.keys[word]; {
		case word == "$channel" || word == "$readwrite" || word == "$permits" || word == "$redlock":
			a.channel = value
			request = request.Args(value)
		case is && word != "$sha":
			a.key = value
			request = request.Keys(value)
		case is:
			request = request.Args(value)
		default:
			request = request.Args(word)
		}
	}
	return request.Build(), a
}

// right returns the missing right that made the server refuse a request, or "".
func (t redisTrial) right(a askedFor, err error) string {
	answer, refused := rueidis.IsRedisErr(err)
	if !refused || !strings.HasPrefix(answer.Error(), "NOPERM") {
		return ""
	}
	switch text := answer.Error(); {
	case strings.Contains(text, "to run"):
		return "+" + strings.ToLower(a.name)
	case strings.Contains(text, "channel"):
		return "&" + t.pattern(a.channel)
	}
	return "~" + t.pattern(a.key)
}

// pattern matches the keys or channels of all names with the prefix.
func (t redisTrial) pattern(key string) string {
	if strings.HasPrefix(key, fencePrefix) {
		return strings.TrimSuffix(key, "{0}") + "*"
	}
	before, _, _ := strings.Cut(key, t.keys["$lock"])
	return before + t.prefix + "*"
}

// subscribe subscribes briefly to a channel.
func (t redisTrial) subscribe(ctx context.Context, channel string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { cancel() })
	return t.client.Receive(told, t.client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
}
