package redisson

import (
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
)

// ErrNotReplicated: too few replicas confirmed a grant or a renewal in time (Options.WaitReplicas). A grant was undone. The error matches
// driver.ErrUnavailable too.
var ErrNotReplicated = fmt.Errorf("not enough replicas: %w", driver.ErrUnavailable)

// slotMoves reports whether a node refused a request because some of its keys are on another node by now.
func slotMoves(err error) bool {
	var answer *rueidis.RedisError
	return errors.As(err, &answer) && redisdial.HasCode(answer.Error(), "TRYAGAIN")
}
