package redisson

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestRefusals has a real server return the errors of this version and of
// others.
func TestRefusals(t *testing.T) {
	s := testenv.Redis(t)
	client := userClient(t, rueidis.ClientOption{InitAddress: []string{s.Addr}})
	for _, test := range []struct {
		text  string
		want  error // nil: no error that package dsync knows
		doubt bool
	}{
		{"READONLY You can't write against a read only replica.", driver.ErrUnavailable, false},
		{"LOADING Redis is loading the dataset in memory", driver.ErrUnavailable, false},
		{"CLUSTERDOWN The cluster is down", driver.ErrUnavailable, false},
		{"TRYAGAIN Multiple keys request during rehashing of slot", driver.ErrUnavailable, false},
		{"MASTERDOWN Link with MASTER is down", driver.ErrUnavailable, false},
		{"BUSY Redis is busy running a script.", driver.ErrUnavailable, false},
		{"OOM command not allowed when used memory > 'maxmemory'.", driver.ErrUnavailable, false},
		{"MISCONF Redis is configured to save RDB snapshots", driver.ErrUnavailable, false},
		{"NOREPLICAS Not enough good replicas to write.", driver.ErrUnavailable, false},
		{"MOVED 3999 127.0.0.1:6381", driver.ErrUnavailable, false},
		{"ERR max number of clients reached", driver.ErrUnavailable, false},
		{"ERR max number of clients + cluster connections reached", driver.ErrUnavailable, false},
		{"NOPERM this user has no permissions to run the 'hset' command", fs.ErrPermission, true},
		{"NOAUTH Authentication required.", fs.ErrPermission, true},
		{"WRONGPASS invalid username-password pair or user is disabled.", fs.ErrPermission, true},
		{"ERR The user executing the script can't run this command or subcommand script: 0123, on @user_script:1.", fs.ErrPermission, true},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", nil, false},
		{"ERR unknown command 'EVALSHA', with args beginning with: '0123' ", fs.ErrPermission, false},
		{"ERR Unknown Redis command called from script script: 0123, on @user_script:1.", fs.ErrPermission, true},
		{"ERR something else", nil, true},

		// Redis 6.2, from within a script.
		{"ERR Error running script (call to f_0123): @user_script:5: @user_script: 5: The user executing the script can't run this command or subcommand", fs.ErrPermission, true},
		{"ERR Error running script (call to f_0123): @user_script:5: @user_script: 5: Unknown Redis command called from Lua script", fs.ErrPermission, true},
		{"ERR Error running script (call to f_0123): @user_script:5: WRONGTYPE Operation against a key holding the wrong kind of value", nil, false},
		{"ERR Error running script (call to f_0123): @user_script:30: @user_script: 30: -READONLY You can't write against a read only replica.", driver.ErrUnavailable, false},
		{"ERR Error running script (call to f_0123): @user_script:30: @user_script: 30: -OOM command not allowed", driver.ErrUnavailable, false},
	} {
		answer := client.Do(t.Context(), client.B().Eval().Script("return {err = ARGV[1]}").Numkeys(0).Arg(test.text).Build()).Error()
		err, doubt := redisdriver.Fault(t.Context(), "name", answer)
		known := errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) || errors.Is(err, fs.ErrPermission)
		if doubt != test.doubt || known != (test.want != nil) || !errors.Is(err, test.want) && test.want != nil {
			t.Errorf("%q: got %v, doubt %t; want %v, %t", test.text, err, doubt, test.want, test.doubt)
		}
	}
}

func TestFaults(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	dial := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for _, test := range []struct {
		ctx   context.Context
		err   error
		want  []error
		doubt bool
	}{
		{t.Context(), io.EOF, []error{driver.ErrUnknown, io.EOF}, true},
		{t.Context(), rueidis.ErrClosing, []error{driver.ErrUnknown}, true},
		{t.Context(), dial, []error{driver.ErrUnavailable}, false},
		{t.Context(), redisdriver.NotSent{Why: io.EOF}, []error{driver.ErrUnavailable, io.EOF}, false},
		{t.Context(), rueidis.ErrNoSlot, []error{driver.ErrUnavailable}, false},
		{canceled, io.EOF, []error{driver.ErrUnknown, io.EOF, context.Canceled}, true},
		{canceled, context.Canceled, []error{driver.ErrUnknown, context.Canceled}, true},
		{canceled, dial, []error{driver.ErrUnavailable, context.Canceled}, false},
	} {
		err, doubt := redisdriver.Fault(test.ctx, "name", test.err)
		for _, want := range test.want {
			if !errors.Is(err, want) {
				t.Errorf("%v: got %v, want %v", test.err, err, want)
			}
		}
		if doubt != test.doubt {
			t.Errorf("%v: got doubt %t, want %t", test.err, doubt, test.doubt)
		}
	}
}
