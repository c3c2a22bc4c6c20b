package redlock

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/rueidis"
)

// script is a Lua script and the name under which a server keeps it.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	//go:embed release.lua
	releaseText string
	//go:embed renew.lua
	renewText string
	//go:embed inspect.lua
	inspectText string

	releaseScript = newScript(releaseText)
	renewScript   = newScript(renewText)
)

// load is the command that gives a script to a node.
func (s *script) load(b rueidis.Builder) rueidis.Completed {
	return b.ScriptLoad().Script(s.text).Build()
}

func isNoScript(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && answer.IsNoScript()
}
