package redisson

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Permits are Redisson's RPermitExpirableSemaphore: see permits.lua. They have
// a separate channel.
const (
	permitPrefix = "redisson_sc" // of the channel
	endsSuffix   = "timeout"     // of the key of the ends
	// permits of one hold, bounded so that no script blocks the server for long
	maxPermits = 1000
)

// endsKey returns the key with the ends of the permits of a name.
func endsKey(name string) string { return readPrefix(name) + endsSuffix }

func permitKeys(name string, keys []string) []string { return append(keys, name, endsKey(name)) }

// permitArgs adds the prefix of a hold's members, and their number.
func permitArgs(hold string, n int, args []string) []string {
	sum := sha1.Sum([]byte(hold))
	return append(args, string(sum[:12]), strconv.Itoa(n))
}

// tellPermitsArgs adds the arguments with which scripts notify the waiters for
// permits.
func (d *Driver) tellPermitsArgs(name string, args []string) []string {
	return append(append(args, prefixName(permitPrefix, name)), d.checked.words...)
}

// SetLimit implements driver.Limiter.
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if err := d.admin(ctx, name); err != nil {
		return err
	}
	args := d.tellPermitsArgs(name, []string{strconv.Itoa(limit)})
	done, err := d.runScript(ctx, name, permitLimitScript.Call(permitKeys(name, nil), args...))
	if err == nil && done < 0 {
		return driver.ErrSealed
	}
	return err
}

// inspectPermits is Inspect for a name of permits.
func (d *Driver) inspectPermits(ctx context.Context, name string) (driver.Status, error) {
	status, err := readPermits(d.query(ctx, permitInspectScript.Call(permitKeys(name, nil))))
	if err != nil {
		return driver.Status{}, redisdriver.Explain(ctx, name, err)
	}
	status.Waiters, err = d.waiters(ctx, []string{prefixName(permitPrefix, name)})
	return status, err
}

// readPermits reads the answer from permitInspectScript. hold is the prefix of
// the ids of a hold's permits, as Java writes ids. A Java permit without an end
// has no TTL.
func readPermits(result rueidis.RedisResult) (status driver.Status, err error) {
	answer, err := result.ToArray()
	if err != nil {
		return status, err
	}
	if len(answer) != 5 {
		return status, redisdriver.ErrAnswer
	}
	var numbers [4]int64
	for i, at := range []int{0, 1, 2, 4} {
		if numbers[i], err = answer[at].ToInt64(); err != nil {
			return status, err
		}
	}
	hold, err := answer[3].ToString()
	status.Limit, status.Used, status.Holders = int(numbers[0]), int(numbers[1]), int(numbers[2])
	if status.Holders > 0 {
		status.Held, status.Mode = true, driver.Permit
		status.Hold = hex.EncodeToString([]byte(hold))
		if left := numbers[3]; left < maxTTL.Milliseconds() {
			status.TTL = time.Duration(left) * time.Millisecond
		}
	}
	return status, err
}

// isWrongType reports whether a server refused a command because the key has
// another type.
func isWrongType(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && redisdial.HasCode(answer.Error(), "WRONGTYPE")
}
