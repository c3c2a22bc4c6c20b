package main

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

const seeRights = "docs/security.md#rights"

// redisUse is something that a user does with locks, and the requests that try its rights one by one. The words $lock, $fence and so on
// stand for keys. The key $lock is a text for some seconds, so all that is for keys of another kind is refused when its right is
// checked already, and changes nothing.
type redisUse struct {
	what  string
	level level // of a finding that a right is missing
	when  func(x *examination) bool
	try   []string
}

// tryScript does nothing.
const tryScript = "return{}"

var redisUses = []redisUse{
	{"locks", fault, isRedisson, []string{
		"EVAL " + tryScript + " 1 $lock", "EVALSHA $sha 1 $lock", "HEXISTS $lock f", "HSET $lock f 1", "HDEL $lock f", "PEXPIRE $lock 5000",
		"PTTL $lock", "SET $lock 1 PX 5000", "TIME", "PUBLISH $channel 0",
	}},
	{"fencing tokens", fault, func(x *examination) bool { return isRedisson(x) && x.url.Bool("fenced", true) }, []string{"PTTL $fence"}},
	{"messages to those who wait (otherwise they ask every 5 s)", note, isRedisson, []string{"SUBSCRIBE $channel"}},
	{"who holds a lock", note, isRedisson, []string{"PTTL $holder"}},
	{"pings (otherwise each is noted in the ACL LOG)", note, nil, []string{"PING"}},
	{"fair=true", fault, func(x *examination) bool { return isRedisson(x) && x.url.Bool("fair", false) }, []string{
		"PTTL $queue", "PTTL $times", "HLEN $lock", "LINDEX $lock 0", "LLEN $lock", "LPOS $lock x", "LPUSH $lock x", "LRANGE $lock 0 0",
		"LREM $lock 0 x", "RPUSH $lock x", "ZADD $lock 1 x", "ZMSCORE $lock x", "ZREM $lock x", "ZSCORE $lock x",
	}},
	{"fence=redisson", fault, func(x *examination) bool { return isRedisson(x) && x.url.Param("fence", "") == "redisson" }, []string{
		"PTTL $counter", "INCR $lock", "INCRBY $lock 1",
	}},
	{"Read and Write", warning, isRedisson, []string{"PTTL $readers", "PTTL $intent", "PUBLISH $readwrite 0", "HGET $lock f", "HRANDFIELD $lock", "DEL $gone"}},
	{"show and release", note, isRedisson, []string{"HLEN $lock", "DEL $gone", "GET $lock", "HGET $lock f", "HGETALL $lock"}},
	{"ls", note, isRedisson, []string{"SCAN 0 COUNT 1", "HGET $lock f", "HRANDFIELD $lock"}},
	{"locks", fault, isRedlock, []string{
		"SET $lock 1 PX 5000", "GET $lock", "DEL $gone", "PEXPIREAT $lock 1", "PTTL $gone", "TIME", "EVAL " + tryScript + " 1 $lock",
		"EVALSHA $sha 1 $lock", "SCRIPT LOAD " + tryScript, "CLIENT ID", "CLIENT KILL ID 0", "CLIENT SETNAME dsync-doctor",
	}},
	{"messages to those who wait (otherwise they ask now and then)", note, isRedlock, []string{"PUBLISH $redlock 0", "SUBSCRIBE $redlock"}},
}

func isRedisson(x *examination) bool { return x.url.Scheme == "redisson" }
func isRedlock(x *examination) bool  { return !isRedisson(x) }

// makes are commands that make a key where there is none: they are tried on a key of another kind alone.
var makes = []string{"HSET", "LPUSH", "RPUSH", "ZADD", "INCR", "INCRBY"}

// redisKeys returns what the words of redisUse stand for, for a lock that nobody has.
func (x *examination) redisKeys() map[string]string {
	lock := x.name + ":" + strings.ToLower(rand.Text()[:12])
	of := func(prefix string) string {
		if strings.Contains(lock, "{") {
			return prefix + ":" + lock
		}
		return prefix + ":{" + lock + "}"
	}
	sha := sha1.Sum([]byte(tryScript))
	return map[string]string{
		"$lock": lock, "$gone": lock + ":gone", "$fence": of("dsync_fence"), "$holder": of("dsync_holder"), "$intent": of("dsync_intent"),
		"$queue": of("redisson_lock_queue"), "$times": of("redisson_lock_timeout"), "$counter": of("redisson_lock_token"),
		"$readers": "{" + lock + "}:x", "$channel": of("redisson_lock__channel"), "$readwrite": of("redisson_rwlock"),
		"$redlock": "dsync_redlock:" + lock, "$sha": hex.EncodeToString(sha[:]),
	}
}

// redisRights tries the rights of the user.
func (x *examination) redisRights(ctx context.Context, client rueidis.Client) {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	keys := x.redisKeys()
	made := tryRight(ctx, client, keys, "SET $lock text PX 5000") == ""
	for _, use := range redisUses {
		if use.when != nil && !use.when(x) {
			continue
		}
		var missing, untried []string
		for _, line := range use.try {
			if word, _, _ := strings.Cut(line, " "); !made && slices.Contains(makes, word) {
				untried = append(untried, "+"+strings.ToLower(word))
			} else if right := tryRight(ctx, client, keys, line); right != "" && !slices.Contains(missing, right) {
				missing = append(missing, right)
			}
		}
		x.redisUse(use, missing, untried)
	}
}

func (x *examination) redisUse(use redisUse, missing, untried []string) {
	if len(missing) == 0 {
		x.good("rights", "%s: the user has all rights", use.what)
		return
	}
	text := fmt.Sprintf("%s: the user lacks %s", use.what, strings.Join(missing, " "))
	if len(untried) > 0 {
		text += "; not tried without +set: " + strings.Join(untried, " ")
	}
	x.bad(use.level, "rights", text, fmt.Sprintf("ACL SETUSER %s %s", x.user(), strings.Join(missing, " ")), seeRights)
}

// tryRight returns the right that a request lacks, or "". Any other answer than a refusal by rights says that the right is there.
func tryRight(ctx context.Context, client rueidis.Client, keys map[string]string, line string) string {
	words := strings.Fields(line)
	name, key, channel := words[0], "", ""
	request := client.B().Arbitrary(words[0])
	for _, word := range words[1:] {
		switch value, is := keys[word]; {
		case word == "$channel" || word == "$readwrite" || word == "$redlock":
			channel = value
			request = request.Args(value)
		case is && word != "$sha":
			key = value
			request = request.Keys(value)
		case is:
			request = request.Args(value)
		default:
			request = request.Args(word)
		}
	}
	if words[0] == "SCRIPT" || words[0] == "CLIENT" {
		name += "|" + words[1]
	}
	var err error
	if words[0] == "SUBSCRIBE" {
		err = subscribe(ctx, client, channel)
	} else {
		err = client.Do(ctx, request.Build()).Error()
	}
	answer, refused := rueidis.IsRedisErr(err)
	if !refused || !strings.HasPrefix(answer.Error(), "NOPERM") {
		return ""
	}
	switch text := answer.Error(); {
	case strings.Contains(text, "to run"):
		return "+" + strings.ToLower(name)
	case strings.Contains(text, "channel"):
		return "&" + channel
	}
	return "~" + key
}

// subscribe subscribes to a channel for a moment.
func subscribe(ctx context.Context, client rueidis.Client, channel string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { cancel() })
	return client.Receive(told, client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
}
