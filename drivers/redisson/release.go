package redisson

import (
	"context"

	"github.com/redis/rueidis"
)

// evalRelease asks to end a hold. It is answered with the number of those who were told, or -1 if there is no such hold.
func (d *Driver) evalRelease(ctx context.Context, s *stamp, name, hold string) rueidis.RedisResult {
	args := [4]string{hold, prefixName(channelPrefix, name)}
	n := 2 + copy(args[2:], d.checked.words)
	return d.eval(ctx, s, releaseScript, []string{name}, args[:n])
}

// releaseCall is evalRelease for evalAll.
func (d *Driver) releaseCall(name, hold string) call {
	args := append([]string{hold, prefixName(channelPrefix, name)}, d.checked.words...)
	return call{keys: []string{name}, args: args}
}
