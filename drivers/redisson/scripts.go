package redisson

import (
	"crypto/sha1"
	_ "embed"
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

var (
	//go:embed take.lua
	takeFunctions string
	//go:embed raise.lua
	raiseFunction string // with takeFunctions
	//go:embed acquire.lua
	acquireFunction string // with takeFunctions
	//go:embed turn.lua
	turnFunction string
	//go:embed release.lua
	releaseFunction string
	//go:embed batch.lua
	batchText string
	//go:embed basics.lua
	basicFunctions string // for fairFunctions, readersFunctions and readWriteReleaseFunctions
	//go:embed fair.lua
	fairFunctions string
	//go:embed fairgrant.lua
	fairGrantFunction string
	//go:embed fairacquire.lua
	fairAcquireFunction string
	//go:embed fairrelease.lua
	fairReleaseFunction string
	//go:embed fairbatch.lua
	fairBatchText string
	//go:embed rw.lua
	readWriteFunctions string
	//go:embed rwreaders.lua
	readersFunctions string
	//go:embed rwwrite.lua
	writeFunction string
	//go:embed rwrelease.lua
	readWriteReleaseFunctions string
	//go:embed rwreleaseread.lua
	releaseReadFunction string
	//go:embed rwreleasewrite.lua
	releaseWriteFunction string
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
	//go:embed latch.lua
	latchText string
	//go:embed permits.lua
	permitFunctions string
	//go:embed permitacquire.lua
	permitAcquireText string
	//go:embed permitrelease.lua
	permitReleaseText string
	//go:embed permitrenew.lua
	permitRenewText string
	//go:embed permitlimit.lua
	permitLimitText string
	//go:embed permitinspect.lua
	permitInspectText string
	//go:embed permitforce.lua
	permitForceText string

	acquireScript = newScript(takeFunctions + acquireFunction + "return acquire(KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3], ARGV[4], ARGV[5], KEYS[3])\n")
	turnScript    = newScript(takeFunctions + acquireFunction + turnFunction +
		"return acquireInTurn(ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[1], ARGV[5], ARGV[6], KEYS[2], ARGV[7], ARGV[8], ARGV[9], KEYS[3])\n")
	releaseScript = newScript(releaseFunction + "return release(KEYS[1], unpack(ARGV))\n")
	batchScript   = newScript(takeFunctions + acquireFunction + turnFunction + releaseFunction + batchText)
	renewScript   = newScript(renewText)
	forceScript   = newScript(forceText)
	inspectScript = newScript(basicFunctions + readersFunctions + inspectText)
	sealScript    = newScript(sealText)
	sealedScript  = newScript(sealedText)
	markScript    = newScript(takeFunctions + raiseFunction + markText)
	markedScript  = newScript(markedText)
	loosenScript  = newScript(takeFunctions + raiseFunction + loosenText)
	unsealScript  = newScript(unsealText)
	unmarkScript  = newScript(unmarkText)
	latchScript   = newScript(latchText)

	// Each run of a script makes the functions of its text anew, so a script has no more than it needs.
	readScript  = newScript(takeFunctions + acquireFunction + readWriteFunctions + "return acquireRead(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	writeScript = newScript(takeFunctions + acquireFunction + basicFunctions + readWriteFunctions + readersFunctions + writeFunction +
		"return acquireWrite(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")

	releaseRead            = readersFunctions + readWriteReleaseFunctions + releaseReadFunction + "return releaseRead(KEYS[1], KEYS[2], unpack(ARGV))\n"
	releaseWrite           = readWriteReleaseFunctions + releaseWriteFunction + "return releaseWrite(KEYS[1], KEYS[2], unpack(ARGV))\n"
	readReleaseScript      = newScript(basicFunctions + releaseRead)
	writeReleaseScript     = newScript(basicFunctions + releaseWrite)
	fairReadReleaseScript  = newScript(basicFunctions + fairFunctions + releaseRead)
	fairWriteReleaseScript = newScript(basicFunctions + fairFunctions + releaseWrite)

	fairGrant         = takeFunctions + basicFunctions + fairFunctions + fairGrantFunction
	fairAcquireScript = newScript(fairGrant + fairAcquireFunction + "return acquireFair(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	fairReleaseScript = newScript(fairGrant + fairReleaseFunction + "return releaseFair(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	fairBatchScript   = newScript(fairGrant + fairAcquireFunction + fairReleaseFunction + fairBatchText)
	fairForceScript   = newScript(basicFunctions + fairFunctions + fairForceText)

	permitAcquireScript = newScript(permitFunctions + permitAcquireText)
	permitReleaseScript = newScript(permitFunctions + permitReleaseText)
	permitRenewScript   = newScript(permitFunctions + permitRenewText)
	permitLimitScript   = newScript(permitFunctions + permitLimitText)
	permitInspectScript = newScript(permitFunctions + permitInspectText)
	permitForceScript   = newScript(permitFunctions + permitForceText)
)
