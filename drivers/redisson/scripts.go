package redisson

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// script is a Lua script and the name under which a server keeps it.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	//go:embed acquire.lua
	acquireFunction string
	//go:embed release.lua
	releaseFunction string
	//go:embed batch.lua
	batchText string
	//go:embed fair.lua
	fairFunctions string
	//go:embed fairforce.lua
	fairForceText string
	//go:embed renew.lua
	renewText string
	//go:embed force.lua
	forceText string
	//go:embed inspect.lua
	inspectText string
	//go:embed seal.lua
	sealText string
	//go:embed sealed.lua
	sealedText string
	//go:embed mark.lua
	markText string
	//go:embed marked.lua
	markedText string
	//go:embed loosen.lua
	loosenText string
	//go:embed unseal.lua
	unsealText string
	//go:embed unmark.lua
	unmarkText string

	acquireScript = newScript(acquireFunction + "return acquire(KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3], ARGV[4], KEYS[3])\n")
	releaseScript = newScript(releaseFunction + "return release(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])\n")
	batchScript   = newScript(acquireFunction + releaseFunction + batchText)
	renewScript   = newScript(renewText)
	forceScript   = newScript(forceText)
	inspectScript = newScript(inspectText)
	sealScript    = newScript(sealText)
	sealedScript  = newScript(sealedText)
	markScript    = newScript(markText)
	markedScript  = newScript(markedText)
	loosenScript  = newScript(loosenText)
	unsealScript  = newScript(unsealText)
	unmarkScript  = newScript(unmarkText)

	fairAcquireScript = newScript(acquireFunction + fairFunctions +
		"return acquireFair(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], KEYS[4], ARGV[8], ARGV[9])\n")
	fairReleaseScript = newScript("local call = redis.call\n" + fairFunctions +
		"return releaseFair(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4])\n")
	fairForceScript = newScript("local call = redis.call\n" + fairFunctions + fairForceText)
)
