package redisson

import (
	"embed"

	"github.com/go-dsync/dsync/internal/redisdriver"
)

//go:embed lua
var luaFiles embed.FS

// lua returns the text of a file: a script, or functions of scripts.
func lua(name string) string {
	text, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

var (
	acquireScript = redisdriver.NewScript(lua("take") + lua("acquire") + "return acquire(KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3], ARGV[4], ARGV[5], KEYS[3])\n")
	turnScript    = redisdriver.NewScript(lua("take") + lua("acquire") + lua("turn") +
		"return acquireInTurn(ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[1], ARGV[5], ARGV[6], KEYS[2], ARGV[7], ARGV[8], ARGV[9], KEYS[3])\n")
	releaseScript = redisdriver.NewScript(lua("release") + "return release(KEYS[1], unpack(ARGV))\n")
	batchScript   = redisdriver.NewScript(lua("take") + lua("acquire") + lua("turn") + lua("release") + lua("batch"))
	renewScript   = redisdriver.NewScript(lua("renew"))
	forceScript   = redisdriver.NewScript(lua("force"))
	inspectScript = redisdriver.NewScript(lua("basics") + lua("rwreaders") + lua("inspect"))
	sealScript    = redisdriver.NewScript(lua("seal"))
	markScript    = redisdriver.NewScript(lua("take") + lua("raise") + lua("mark"))
	loosenScript  = redisdriver.NewScript(lua("take") + lua("raise") + lua("loosen"))
	unsealScript  = redisdriver.NewScript(lua("unseal"))
	unmarkScript  = redisdriver.NewScript(lua("unmark"))
	latchScript   = redisdriver.NewScript(lua("latch"))

	// Each run of a script makes the functions of its text anew, so a script has no more than it needs.
	readScript  = redisdriver.NewScript(lua("take") + lua("acquire") + lua("rw") + "return acquireRead(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	writeScript = redisdriver.NewScript(lua("take") + lua("acquire") + lua("basics") + lua("rw") + lua("rwreaders") + lua("rwwrite") +
		"return acquireWrite(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")

	releaseRead            = lua("rwreaders") + lua("rwrelease") + lua("rwreleaseread") + "return releaseRead(KEYS[1], KEYS[2], unpack(ARGV))\n"
	releaseWrite           = lua("rwrelease") + lua("rwreleasewrite") + "return releaseWrite(KEYS[1], KEYS[2], unpack(ARGV))\n"
	readReleaseScript      = redisdriver.NewScript(lua("basics") + releaseRead)
	writeReleaseScript     = redisdriver.NewScript(lua("basics") + releaseWrite)
	fairReadReleaseScript  = redisdriver.NewScript(lua("basics") + lua("fair") + releaseRead)
	fairWriteReleaseScript = redisdriver.NewScript(lua("basics") + lua("fair") + releaseWrite)

	fairAcquireScript = redisdriver.NewScript(lua("take") + lua("basics") + lua("fair") + lua("fairgrant") + lua("fairacquire") +
		"return acquireFair(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	fairReleaseScript = redisdriver.NewScript(lua("basics") + lua("fair") + lua("fairrelease") + "return releaseFair(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")
	fairForceScript   = redisdriver.NewScript(lua("basics") + lua("fair") + lua("fairforce"))

	permitAcquireScript = redisdriver.NewScript(lua("permits") + lua("permitacquire"))
	permitReleaseScript = redisdriver.NewScript(lua("permits") + lua("permitrelease"))
	permitRenewScript   = redisdriver.NewScript(lua("permits") + lua("permitrenew"))
	permitLimitScript   = redisdriver.NewScript(lua("permits") + lua("permitlimit"))
	permitInspectScript = redisdriver.NewScript(lua("permits") + lua("permitinspect"))
	permitForceScript   = redisdriver.NewScript(lua("permits") + lua("permitforce"))
)
