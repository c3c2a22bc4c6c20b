package redisson

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// script is a Lua script and the name under which a server keeps it.
type script struct{ text, sha string }

// texts are the texts of all scripts, by sha.
var texts = make(map[string]string)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	s := &script{text: text, sha: hex.EncodeToString(sum[:])}
	texts[s.sha] = text
	return s
}

var (
	placeInScript   = regexp.MustCompile(`user_script: ?(\d+)`)
	shaOfScript     = regexp.MustCompile(`[0-9a-f]{40}`)
	commandOfScript = regexp.MustCompile(`call\('([A-Z]+)'`)
)

// commandAt returns the commands of a script in the line that an error of the server names.
func commandAt(text string) string {
	const unknown = "a command of a script"
	script, known := texts[shaOfScript.FindString(text)]
	place := placeInScript.FindStringSubmatch(text)
	if !known || place == nil {
		return unknown
	}
	lines := strings.Split(script, "\n")
	n, err := strconv.Atoi(place[1])
	if err != nil || n < 1 || n > len(lines) {
		return unknown
	}
	var commands []string
	for _, found := range commandOfScript.FindAllStringSubmatch(lines[n-1], -1) {
		commands = append(commands, found[1])
	}
	if commands == nil { // the command is not in the text of the script
		return "PUBLISH or SPUBLISH"
	}
	return strings.Join(commands, " or ")
}

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
	acquireScript = newScript(lua("take") + lua("acquire") + "return acquire(KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3], ARGV[4], ARGV[5], KEYS[3])\n")
	turnScript    = newScript(lua("take") + lua("acquire") + lua("turn") +
		"return acquireInTurn(ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[1], ARGV[5], ARGV[6], KEYS[2], ARGV[7], ARGV[8], ARGV[9], KEYS[3])\n")
	releaseScript = newScript(lua("release") + "return release(KEYS[1], unpack(ARGV))\n")
	batchScript   = newScript(lua("take") + lua("acquire") + lua("turn") + lua("release") + lua("batch"))
	renewScript   = newScript(lua("renew"))
	forceScript   = newScript(lua("force"))
	inspectScript = newScript(lua("basics") + lua("rwreaders") + lua("inspect"))
	sealScript    = newScript(lua("seal"))
	sealedScript  = newScript(lua("sealed"))
	markScript    = newScript(lua("take") + lua("raise") + lua("mark"))
	markedScript  = newScript(lua("marked"))
	loosenScript  = newScript(lua("take") + lua("raise") + lua("loosen"))
	unsealScript  = newScript(lua("unseal"))
	unmarkScript  = newScript(lua("unmark"))
	latchScript   = newScript(lua("latch"))

	// Each run of a script makes the functions of its text anew, so a script has no more than it needs.
	readScript  = newScript(lua("take") + lua("acquire") + lua("rw") + "return acquireRead(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	writeScript = newScript(lua("take") + lua("acquire") + lua("basics") + lua("rw") + lua("rwreaders") + lua("rwwrite") +
		"return acquireWrite(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")

	releaseRead            = lua("rwreaders") + lua("rwrelease") + lua("rwreleaseread") + "return releaseRead(KEYS[1], KEYS[2], unpack(ARGV))\n"
	releaseWrite           = lua("rwrelease") + lua("rwreleasewrite") + "return releaseWrite(KEYS[1], KEYS[2], unpack(ARGV))\n"
	readReleaseScript      = newScript(lua("basics") + releaseRead)
	writeReleaseScript     = newScript(lua("basics") + releaseWrite)
	fairReadReleaseScript  = newScript(lua("basics") + lua("fair") + releaseRead)
	fairWriteReleaseScript = newScript(lua("basics") + lua("fair") + releaseWrite)

	fairAcquire       = lua("take") + lua("basics") + lua("fair") + lua("fairgrant") + lua("fairacquire")
	fairAcquireScript = newScript(fairAcquire + "return acquireFair(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	fairReleaseScript = newScript(lua("basics") + lua("fair") + lua("fairrelease") + "return releaseFair(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")
	fairBatchScript   = newScript(fairAcquire + lua("fairrelease") + lua("fairbatch"))
	fairForceScript   = newScript(lua("basics") + lua("fair") + lua("fairforce"))

	permitAcquireScript = newScript(lua("permits") + lua("permitacquire"))
	permitReleaseScript = newScript(lua("permits") + lua("permitrelease"))
	permitRenewScript   = newScript(lua("permits") + lua("permitrenew"))
	permitLimitScript   = newScript(lua("permits") + lua("permitlimit"))
	permitInspectScript = newScript(lua("permits") + lua("permitinspect"))
	permitForceScript   = newScript(lua("permits") + lua("permitforce"))
)
