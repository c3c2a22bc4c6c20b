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
	acquireText string
	//go:embed release.lua
	releaseText string
	//go:embed renew.lua
	renewText string
	//go:embed force.lua
	forceText string
	//go:embed inspect.lua
	inspectText string

	acquireScript = newScript(acquireText)
	releaseScript = newScript(releaseText)
	renewScript   = newScript(renewText)
	forceScript   = newScript(forceText)
	inspectScript = newScript(inspectText)
)
