package driver

import "fmt"

// packages has the drivers of this module by their schemes, and others the schemes by those with which other programs name the same servers.
var (
	packages = map[string]string{
		"memory": "memory", "redisson": "redisson", "redlock": "redlock", "redis-string": "redlock", "etcd": "etcd", "zk": "zk",
		"pglock": "pglock", "migrate": "migrate",
	}
	others = map[string]string{
		"redis": "redisson", "rediss": "redisson", "valkey": "redisson", "zookeeper": "zk", "postgres": "pglock", "postgresql": "pglock",
	}
)

// hint says what a URL of an unknown scheme lacks, or "".
func hint(scheme string) string {
	known, text := scheme, ""
	if ours, ok := others[scheme]; ok {
		known, text = ours, fmt.Sprintf("write %s://", ours)
		if scheme == "rediss" {
			text += " with tls=true"
		}
	}
	dir, ok := packages[known]
	if !ok {
		return ""
	}
	openersMu.RLock()
	_, imported := openers[known]
	openersMu.RUnlock()
	if !imported {
		if text != "" {
			text += ", and "
		}
		text += fmt.Sprintf("import _ %q", "github.com/go-dsync/dsync/drivers/"+dir)
	}
	return text
}
