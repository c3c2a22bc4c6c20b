package driver_test

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestOpenOfAnUnknownSchemeSaysWhatToWrite(t *testing.T) {
	const imports = `import _ "github.com/go-dsync/dsync/drivers/`
	for url, want := range map[string]string{
		"redisson://h":   `unknown backend "redisson": ` + imports + `redisson"`,
		"redis://h":      `unknown backend "redis": write redisson://, and ` + imports + `redisson"`,
		"rediss://h":     `write redisson:// with tls=true, and ` + imports + `redisson"`,
		"postgres://h":   `write pglock://, and ` + imports + `pglock"`,
		"postgresql://h": `write pglock://, and ` + imports + `pglock"`,
		"zookeeper://h":  `write zk://, and ` + imports + `zk"`,
		"mysql://h":      `unknown backend "mysql": ` + imports + `sqllock"`,
		"redison://h":    `unknown backend "redison": did you mean redisson://?`,
		"consul://h":     `unknown backend "consul" (forgotten import of its driver? registered: `,
	} {
		withPassword := strings.Replace(url, "//h", "//u:"+testenv.PasswordMark+"@h", 1)
		_, _, err := driver.Open(t.Context(), withPassword)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("Open(%q): %v, want an error with %q and no password", url, err, want)
		}
	}
}
