package driver

import "fmt"

// packages maps the schemes of this module's drivers to their packages. others
// maps the schemes that other programs use for the same servers to the schemes
// of this module.
var (
	packages = map[string]string{
		"memory": "memory", "redisson": "redisson", "redlock": "redlock", "redis-string": "redlock", "etcd": "etcd", "zk": "zk",
		"pglock": "pglock", "migrate": "migrate", "mysql": "sqllock", "pgtable": "sqllock", "sqlite": "sqllock",
	}
	others = map[string]string{
		"redis": "redisson", "rediss": "redisson", "valkey": "redisson", "zookeeper": "zk", "postgres": "pglock", "postgresql": "pglock",
	}
)

// hint returns a hint about a URL with an unknown scheme, or "".
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
		for near := range packages {
			if distance(scheme, near) <= 2 && len(scheme) > 3 {
				return fmt.Sprintf("did you mean %s://?", near)
			}
		}
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

// distance returns the number of bytes that must be inserted, deleted or
// replaced to turn a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a prefix of a to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
