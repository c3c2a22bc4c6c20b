package redlock

import (
	_ "embed"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/redisdriver"
)

var (
	//go:embed release.lua
	releaseText string
	//go:embed renew.lua
	renewText string
	//go:embed inspect.lua
	inspectText string
	//go:embed take.lua
	takeText string

	takeScript    = redisdriver.NewScript(takeText)
	releaseScript = redisdriver.NewScript(releaseText)
	renewScript   = redisdriver.NewScript(renewText)
)

// loads are the commands that give a node the scripts that it is asked to run by their names.
func (n *node) loads(b rueidis.Builder) rueidis.Commands {
	loads := rueidis.Commands{releaseScript.Load(b), renewScript.Load(b)}
	if n.driver.single() {
		loads = append(loads, takeScript.Load(b))
	}
	return loads
}
