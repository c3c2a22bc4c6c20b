package redlock

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
)

// permissionCodes begin refusals. The last one is the text, without a code, by which servers up to 7.0 refuse a command of a script.
var permissionCodes = []string{"NOPERM", "NOAUTH", "WRONGPASS", "The user executing the script can't"}

// refusal puts the error of a request to a node in the words of package driver. An error that the node returned means that it did nothing.
func refusal(err error) error {
	var answer *rueidis.RedisError
	ok := errors.As(err, &answer)
	if ok {
		if err := redisdial.RefusedCommand(answer); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, driver.ErrUnavailable), errors.Is(err, driver.ErrClosed), errors.Is(err, fs.ErrPermission):
		return err
	case ok && hasCode(answer.Error(), permissionCodes...):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	default:
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
}

// isDemoted reports whether a server refused a request because it is a replica.
func isDemoted(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && hasCode(answer.Error(), "READONLY", "MASTERDOWN")
}

// hasCode reports whether an error of a server carries one of the codes, as its own or that of a command in a script.
func hasCode(text string, codes ...string) bool {
	inScript := strings.Contains(text, "user_script") || strings.Contains(text, "script:")
	for _, code := range codes {
		if strings.HasPrefix(text, code) || inScript && strings.Contains(text, code) {
			return true
		}
	}
	return false
}
