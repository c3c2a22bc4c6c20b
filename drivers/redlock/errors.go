package redlock

import (
	"errors"
	"fmt"
	"io/fs"

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
	case ok && redisdial.HasCode(answer.Error(), permissionCodes...):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	default:
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
}
