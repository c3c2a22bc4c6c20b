package redisdial

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/redis/rueidis"
)

// HasCode reports whether an error of a server has one of the codes. Before
// Redis 7 the code of an error in a script follows the position in the script.
func HasCode(text string, codes ...string) bool {
	inScript := strings.Contains(text, "user_script")
	for _, code := range codes {
		if strings.HasPrefix(text, code) || inScript && (strings.Contains(text, " "+code+" ") || strings.Contains(text, "-"+code+" ")) {
			return true
		}
	}
	return false
}

// IsNoScript reports whether a server does not know a script by its digest.
func IsNoScript(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && answer.IsNoScript()
}

// IsDemoted reports whether a server refused a request because it is a replica.
func IsDemoted(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && HasCode(answer.Error(), "READONLY", "MASTERDOWN")
}

// RefusedCommand returns an error that matches fs.ErrPermission if a server
// does not know a command, which an administrator may have renamed. Otherwise
// RefusedCommand returns nil. In this case the server has not executed the
// command. The text of the server's error is omitted because it quotes the
// arguments of the command, such as a script.
func RefusedCommand(answer *rueidis.RedisError) error {
	// the library omits the ERR before this text
	text, unknown := strings.CutPrefix(answer.Error(), "unknown command ")
	if !unknown {
		return nil
	}
	command, _, _ := strings.Cut(text, ",")
	return fmt.Errorf("%w: the server does not know the command %s", fs.ErrPermission, strings.Trim(command, "`' "))
}
