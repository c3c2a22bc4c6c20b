package main

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestDoctorIsReadable(t *testing.T) {
	p := &two{t: t}
	p.bare("doctor", "memory://doctor").want(cli.ExitDone, "ok       lock  ", "What the backend promises", "0 faults, 0 warnings")
	p.bare("doctor", "redisson://127.0.0.1:1", "--connect", "1s").want(cli.ExitFailed, "fault    reach", "cure: is the server running", "see: docs/choosing.md")
	p.bare("doctor", "redisson://127.0.0.1", "etcd://127.0.0.1").want(cli.ExitUsage, "one URL")
	p.bare("doctor", "redisson://:"+testenv.PasswordMark+"@127.0.0.1").want(cli.ExitUsage, "DSYNC_URL").not(testenv.PasswordMark)
}

// TestDoctorLeavesNothing interrupts doctor at arbitrary times.
func TestDoctorLeavesNothing(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	interrupted := 0
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Millisecond)
		p := &two{t: t, ctx: ctx}
		if p.bare("doctor", "redisson://"+s.Addr+"?fair=true&fence=redisson").status == cli.ExitInterrupted {
			interrupted++
		}
		cancel()
		for _, key := range s.Do("KEYS", "dsync:doctor*").([]any) {
			testenv.Eventually(t, func() bool { return s.Do("EXISTS", key.(string)) == int64(0) }, key.(string)+" is gone")
		}
	}
	for _, key := range s.Do("KEYS", "*").([]any) { // the record of the last token
		if s.Do("PTTL", key.(string)) == int64(-1) {
			t.Errorf("the key %s stays forever", key)
		}
	}
	if interrupted == 0 {
		t.Error("doctor was never interrupted")
	}
}
