package redlock

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// refusal puts the error of a request to a node in the words of package driver. An error that the node returned means that it did nothing.
func refusal(err error) error {
	if known(err) {
		return err
	}
	var answer *rueidis.RedisError
	if errors.As(err, &answer) {
		if err, _ = redisdriver.Refusal("", answer); known(err) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}

// known reports whether an error is in the words of package driver.
func known(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrClosed) || errors.Is(err, fs.ErrPermission)
}
