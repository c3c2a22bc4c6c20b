package runjob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
)

// runFlags are the flags of `dsync run`.
type runFlags struct {
	wait, atLeast, killAfter, ttl, connect   time.Duration
	try, read, write, elect, settle, passURL bool
	permits                                  permits
	note                                     string
}

// runCommands returns run, and the internal command that run starts.
func Commands() []*cobra.Command { return []*cobra.Command{runCommand(), guardCommand()} }

func runCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:                   "run NAME [FLAG...] -- COMMAND [ARGUMENT...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a command under a lock, and end it before another client can acquire the lock",
		Long: `Run waits for the lock NAME, runs the command while it holds the lock, and ends with the status of the command.

With --permits 2/8 it acquires two of the eight permits of NAME instead of a lock, and everything below applies to the permits. Commands whose
permits add up to eight run at a time. The limit is stored on the backend. A different limit is refused with status 64.

The command runs in its own process group. If the lock cannot be renewed, for example because the backend is out of reach, the whole group
gets TERM while the lock is still held, and KILL before another client can acquire the lock. A second process, the guard, does this if
dsync is frozen or killed. If the lock is removed, the group gets KILL as soon as dsync is notified. Other clients may acquire the lock by
then, unless they use --settle. On Linux all this includes processes that leave the group (timeout, setsid, daemons). On macOS such
processes are not ended, so use timeout --foreground there.

When the command has ended, processes that it left behind get TERM, and KILL after --kill-after. Then the lock is released.

HUP, INT, QUIT, TERM, USR1, USR2, WINCH and TSTP are passed on to the whole group. On a terminal the command is in the foreground, and Ctrl-Z
also stops dsync. If dsync is suspended for so long that the lock is lost, the command is ended.

The command's environment contains DSYNC_NAME, DSYNC_TOKEN (the fencing token, if the backend has one) and DSYNC_DEADLINE (the time until
which the lock is held if it is not renewed again, as of the start of the command: RFC 3339, UTC). DSYNC_URL, which may contain a password,
is passed on only with --pass-url.

Exit status
` + cli.StatusTable(),
		Example: `  export DSYNC_URL=redisson://redis:6379
  dsync run backup -- pg_dump -f /backup/db shop      # one at a time, on all machines
  dsync run --try --at-least 59m report -- ./report   # once an hour, from the crontab of each machine
  dsync run --elect scheduler -- ./scheduler          # on one machine, and on another one if it fails
  dsync run --read catalog -- ./export                # together with other readers
  dsync run --write catalog -- ./import               # together with programs that use Redisson's RReadWriteLock
  dsync run --permits 1/8 convert -- ./convert a.mov  # eight at a time, on all machines together`,
		ValidArgsFunction: completeCommand,
		RunE:              f.run,
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return cli.Exit(cli.ExitMisused, cli.FlagError(c, err)) })
	f.add(c)
	return c
}

func (f *runFlags) add(c *cobra.Command) {
	cli.AddURL(c)
	flags := c.Flags()
	flags.DurationVar(&f.wait, "wait", 0, "how long to wait for the lock (default forever)")
	flags.BoolVar(&f.try, "try", false, "do not wait")
	flags.BoolVar(&f.read, "read", false, "share the lock with other readers")
	flags.BoolVar(&f.write, "write", false, "also exclude the readers and writers of the backend's own libraries, such as Redisson's RReadWriteLock")
	flags.Var(&f.permits, "permits", "acquire N of LIMIT permits of the name instead of a lock (LIMIT 0: the limit stored on the backend)")
	flags.BoolVar(&f.elect, "elect", false, "campaign again after a loss, and start the command again in each term")
	flags.DurationVar(&f.atLeast, "at-least", 0, "how long to keep the lock after its grant, even if the command ends earlier")
	flags.DurationVar(&f.killAfter, "kill-after", 0, "time between TERM and KILL (5s, or a fifth of the TTL if that is shorter)")
	flags.BoolVar(&f.settle, "settle", false, "start the command one TTL after the grant, when holders that were not notified of a loss have ended")
	flags.DurationVar(&f.ttl, "ttl", 0, "how long the lock survives a crash of this machine (30s, unless the URL has a ttl)")
	flags.DurationVar(&f.connect, "connect", 10*time.Second, "how long to try to reach the backend")
	flags.StringVar(&f.note, "note", "", "`TEXT` to store with the lock for operators (default host and program)")
	flags.BoolVar(&f.passURL, "pass-url", false, "leave $"+cli.URLVariable+" in the environment of the command")
}

// check returns an error for flags that contradict each other.
func (f *runFlags) check(c *cobra.Command) error {
	given := c.Flags().Changed
	switch {
	case given("wait") && f.wait <= 0, f.connect <= 0, given("at-least") && f.atLeast <= 0, given("ttl") && f.ttl <= 0,
		given("kill-after") && f.killAfter <= 0:
		return cli.Misused("--wait, --connect, --at-least, --ttl and --kill-after must be positive")
	case f.try && given("wait"):
		return cli.Misused("--try does not wait: omit --wait")
	case f.elect && (f.try || given("wait")):
		return cli.Misused("--elect waits for its turn repeatedly: omit --try and --wait")
	case f.elect && (f.read || f.atLeast > 0), f.read && f.atLeast > 0:
		return cli.Misused("--elect, --read and --at-least exclude each other")
	case f.read && f.write:
		return cli.Misused("--read and --write exclude each other")
	case f.permits.asked() && (f.elect || f.read || f.write):
		return cli.Misused("--permits acquires permits instead of a lock: omit --elect, --read and --write")
	}
	return nil
}

// arguments returns the name of the lock and the command.
func arguments(c *cobra.Command, args []string) (name string, argv []string, err error) {
	dash := c.ArgsLenAtDash()
	switch {
	case dash < 0 || dash == len(args):
		return "", nil, cli.Misused("the command is missing: %s", c.UseLine())
	case dash != 1:
		return "", nil, cli.Misused("exactly one name must precede --: %s", c.UseLine())
	}
	if err := cli.CheckName(args[0]); err != nil {
		return "", nil, cli.Exit(cli.ExitMisused, err)
	}
	return args[0], args[1:], nil
}

// keepsOthersOut returns an error for a URL whose locks are invisible to other
// processes.
func keepsOthersOut(raw string) error {
	u, err := driver.ParseURL(raw)
	if err != nil {
		return err
	}
	of := []string{u.Scheme}
	if u.Scheme == "migrate" {
		of = []string{u.Param("from", ""), u.Param("to", "")}
	}
	for _, backend := range of {
		if scheme, _, _ := strings.Cut(backend, ":"); scheme == "memory" {
			return errors.New("a lock in memory excludes no other process: give the URL of a server, such as redisson://redis:6379")
		}
	}
	return nil
}

// find returns the executable of a command. It is called before any wait for a
// lock.
func find(command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, fs.ErrPermission):
		return "", cli.Exit(cli.ExitNotExecutable, err)
	}
	return "", cli.Exit(cli.ExitNotFound, err)
}

func (f *runFlags) run(c *cobra.Command, args []string) (err error) {
	if err := f.check(c); err != nil {
		return err
	}
	name, argv, err := arguments(c, args)
	if err != nil {
		return err
	}
	if err := groupsWork(); err != nil {
		return cli.Exit(cli.ExitMisused, err)
	}
	raw, err := cli.BackendURL(c)
	if err == nil {
		err = keepsOthersOut(raw)
	}
	if err != nil {
		return cli.Exit(cli.ExitMisused, err)
	}
	path, err := find(argv[0])
	if err != nil {
		return err
	}
	ctx, signals := watchSignals(context.WithoutCancel(c.Context()))
	defer signals.close()
	r := &runner{runFlags: *f, name: name, path: path, argv: argv, stderr: c.ErrOrStderr(), signals: signals}
	if err := r.open(ctx, raw); err != nil {
		return err
	}
	defer func() { r.close(err) }()
	if f.elect {
		return r.elect(ctx)
	}
	return r.once(ctx)
}

// close closes the connection. After a loss there is nothing to release, and
// the backend may be out of reach.
func (r *runner) close(err error) {
	limit := cli.CloseLimit
	if status, _ := cli.StatusOf(err); status == cli.ExitLost {
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if closed := r.client.Close(ctx); closed != nil && err == nil {
		r.say("the connection was not closed cleanly: %v", closed)
	}
}

// open connects to the backend and checks whether its TTL leaves enough time to
// end the command.
func (r *runner) open(ctx context.Context, raw string) error {
	if r.note == "" {
		host, _ := os.Hostname()
		r.note = fmt.Sprintf("%s, pid %d: %s", host, os.Getpid(), filepath.Base(r.path))
	}
	bound, cancel := context.WithTimeout(ctx, r.connect)
	defer cancel()
	client, err := dsync.Open(bound, raw, &dsync.Options{TTL: r.ttl, Note: r.note})
	switch {
	case err == nil:
	case interruption(ctx) != nil:
		return interruption(ctx)
	default:
		return backendError(err)
	}
	r.client, r.ttl = client, client.TTL()
	r.reserve = min(r.ttl/10, time.Second)
	if r.killAfter == 0 {
		r.killAfter = min(r.ttl/5, 5*time.Second)
	}
	if most := r.ttl/3 - r.reserve; r.killAfter > most {
		return errors.Join(cli.Misused("a TTL of %v leaves at most %v between TERM and KILL: a lock is renewed when two thirds of the TTL are left, "+
			"and the last third is for the end of the command. Give --kill-after %v, or --ttl %v", r.ttl, most.Truncate(time.Millisecond),
			most.Truncate(time.Millisecond), (r.killAfter+time.Second)*3), client.Close(ctx))
	}
	return nil
}

// completeCommand leaves the words after the name to the shell. Cobra does not
// report on which side of the two dashes they are.
func completeCommand(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}
