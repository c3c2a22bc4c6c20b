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
	//go:embed take.lua
	takeText string

	takeScript    = newScript(takeText)
	releaseScript = newScript(releaseText)
	renewScript   = newScript(renewText)
)

// loads are the commands that give a node the scripts that it is asked to run by their names.
func (n *node) loads(b rueidis.Builder) rueidis.Commands {
	loads := rueidis.Commands{releaseScript.load(b), renewScript.load(b)}
	if n.driver.single() {
		loads = append(loads, takeScript.load(b))
	}
	return loads
}

// load is the command that gives a script to a node.
func (s *script) load(b rueidis.Builder) rueidis.Completed {
	return b.ScriptLoad().Script(s.text).Build()
}
