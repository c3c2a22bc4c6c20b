package driver

import "fmt"

// knownSchemes has the drivers of this module by their schemes, and by those with which other programs name the same servers.
var knownSchemes = map[string]string{
	"memory": "memory", "redisson": "redisson", "redlock": "redlock", "etcd": "etcd", "zk": "zk", "pglock": "pglock", "migrate": "migrate",
	"redis": "redisson", "rediss": "redisson", "valkey": "redisson", "zookeeper": "zk", "postgres": "pglock", "postgresql": "pglock",
}

// hint says what a URL of an unknown scheme lacks, or "".
func hint(scheme string) string {
	known, ok := knownSchemes[scheme]
	if !ok {
		return ""
	}
	openersMu.RLock()
	_, imported := openers[known]
	openersMu.RUnlock()
	text := ""
	if known != scheme {
		text = fmt.Sprintf("write %s://", known)
		if scheme == "rediss" {
			text += " with tls=true"
		}
		if !imported {
			text += ", and "
		}
	}
	if !imported {
		text += fmt.Sprintf("import _ %q", "github.com/go-dsync/dsync/drivers/"+known)
	}
	return text
}
