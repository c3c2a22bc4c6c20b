//go:build linux || darwin

package runjob

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// guard is a second process of this program. It leads the process group of the
// command and starts the command there. This process sends it deadlines. The
// guard kills the command, and everything that the command has started, at the
// latest of these deadlines or when this process is gone. A frozen or killed
// dsync therefore leaves no command running without the lock.
type guard struct {
	pid    int // and the process group
	times  *os.File
	voice  *os.File
	heard  chan report // closed when the guard sends no more reports
	reaped bool
}

// report is a message of the guard.
type report struct {
	kind  reportKind
	value uint32
}

type reportKind uint32

const (
	isReady    reportKind = iota
	hasStarted            // the command, with its process number
	hasFailed             // the start of the command, with the number of the error
	hasStopped            // the command, with the signal
	hasEnded              // the command, with its exit status
	isAlone               // no process of the command is left
	isKilling
)

const reportSize = 8

// guardStart is how long a guard may take to start.
const guardStart = 30 * time.Second

// startGuard starts a guard and returns when the guard is ready to receive the
// first time. The guard starts the command when it receives that time.
func startGuard(path string, argv, environment []string) (*guard, error) {
	self, err := ownBinary()
	if err != nil {
		return nil, err
	}
	in, times, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	voice, out, err := os.Pipe()
	if err != nil {
		times.Close()
		return nil, err
	}
	args := []string{"dsync", guardName}
	for _, f := range []*os.File{in, out} {
		// The guard inherits the file under its current number, so that files
		// that the caller of dsync left open for the command keep their
		// numbers.
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return nil, errors.Join(err, times.Close(), voice.Close(), out.Close())
		}
		args = append(args, strconv.Itoa(int(f.Fd())))
	}
	p, err := os.StartProcess(self, append(append(args, path), argv...), &os.ProcAttr{Env: environment,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	out.Close()
	if err != nil {
		times.Close()
		voice.Close()
		return nil, err
	}
	g := &guard{pid: p.Pid, times: times, voice: voice, heard: make(chan report)}
	err = errors.Join(p.Release(), voice.SetReadDeadline(time.Now().Add(guardStart)))
	if err == nil {
		_, err = g.hear()
	}
	err = errors.Join(err, voice.SetReadDeadline(time.Time{}))
	go func() { // ends when the guard ends
		defer close(g.heard)
		for {
			r, err := g.hear()
			if err != nil {
				return
			}
			g.heard <- r
		}
	}()
	if err != nil {
		g.end(func(report) {})
		return nil, err
	}
	return g, nil
}

func (g *guard) hear() (report, error) {
	var b [reportSize]byte
	n, err := g.voice.Read(b[:]) // the guard writes all 8 in one call
	if err == nil && n < len(b) {
		err = errors.New("the guard's message is too short")
	}
	return report{reportKind(binary.LittleEndian.Uint32(b[:])), binary.LittleEndian.Uint32(b[4:])}, err
}

// sendDeadline sends the guard the time at which it must kill the command.
func (g *guard) sendDeadline(killAt time.Time) error {
	now := sinceBoot() // first: a delay between the two readings makes the time earlier
	at := now + time.Until(killAt)
	if err := g.times.SetWriteDeadline(time.Now().Add(deadlineEvery)); err != nil {
		return err
	}
	_, err := g.times.Write(binary.LittleEndian.AppendUint64(nil, uint64(at)))
	return err
}

// signal sends a signal to the group. The guard forwards it to processes of the
// command that have left the group.
func (g *guard) signal(s syscall.Signal) { _ = unix.Kill(-g.pid, s) }

// end kills the guard, waits for its end, and passes the last reports to note.
// After that, the group's number may belong to another group.
func (g *guard) end(note func(report)) {
	if !g.reaped {
		_ = unix.Kill(g.pid, syscall.SIGKILL)
		for {
			if _, err := syscall.Wait4(g.pid, nil, 0, nil); err != syscall.EINTR {
				break
			}
		}
		g.reaped = true
	}
	// This returns immediately, because no other process holds the other end.
	_ = g.voice.SetReadDeadline(time.Now().Add(deadlineEvery))
	for r := range g.heard {
		note(r)
	}
	g.times.Close()
	g.voice.Close()
}

func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:                guardName,
		Hidden:             true,
		DisableFlagParsing: true, // the flags belong to the command
		RunE: func(_ *cobra.Command, args []string) error {
			if unix.Getpgrp() != os.Getpid() || len(args) < 4 {
				return cli.Usage(errors.New("this is an internal command of dsync run, which starts it"))
			}
			var files [2]*os.File
			for i := range files {
				fd, err := strconv.Atoi(args[i])
				if err != nil {
					return err
				}
				syscall.CloseOnExec(fd)
				files[i] = os.NewFile(uintptr(fd), "pipe")
			}
			w, err := newWatch(files[0], files[1], args[2], args[3:])
			if err != nil {
				return err
			}
			return w.stand()
		},
	}
}

// watch is the main function of the guard.
type watch struct {
	times, voice  *os.File
	signals, wake *os.File // two ends of a pipe with the numbers of this process's signals
	path          string
	argv          []string
	pid           int // of the command; 0: not started
	killing       bool
	alone         bool // the command and everything that it started have ended
}

func newWatch(times, voice *os.File, path string, argv []string) (*watch, error) {
	if err := adopt(); err != nil {
		return nil, err
	}
	signals, wake, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w := &watch{times: times, voice: voice, signals: signals, wake: wake, path: path, argv: argv}
	got := make(chan os.Signal, 64)
	// The group receives signals that are meant for the command. They are
	// caught rather than ignored, because the command would inherit an ignored
	// signal.
	Notify(got, append([]os.Signal{syscall.SIGALRM, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU,
		syscall.SIGTSTP, syscall.SIGCONT}, passedSignals...))
	signal.Notify(got, syscall.SIGCHLD)
	go func() { // ends when the process ends
		for s := range got {
			_, _ = wake.Write([]byte{byte(s.(syscall.Signal))})
		}
	}()
	return w, nil
}

// stand returns an error if something is wrong, and nil after it has killed the
// command.
func (w *watch) stand() error {
	w.report(isReady, 0)
	killAt := time.Duration(math.MaxInt64)
	for {
		told, signaled, err := w.wait(killAt - sinceBoot())
		if err != nil {
			return err
		}
		if signaled {
			w.serve()
		}
		switch {
		case told:
			if killAt, err = nextTime(w.times); err != nil {
				w.kill("dsync, which held the lock, was killed")
				return nil
			}
			if w.pid == 0 && killAt > sinceBoot() {
				if err := w.start(); err != nil {
					return nil // dsync reports the reason
				}
			}
		case killAt <= sinceBoot():
			w.kill("dsync has not renewed the lock, which is about to end")
			return nil
		}
	}
}

// report sends a report to dsync. If dsync has not read thousands of reports,
// it is frozen and must not delay this process.
func (w *watch) report(kind reportKind, value int) {
	poll := []unix.PollFd{{Fd: int32(w.voice.Fd()), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 0); n > 0 || err == unix.EINTR {
		b := binary.LittleEndian.AppendUint32(nil, uint32(kind))
		_, _ = w.voice.Write(binary.LittleEndian.AppendUint32(b, uint32(value))) // dsync may be gone
	}
}

// start starts the command in the group of this process.
func (w *watch) start() error {
	attr := &syscall.SysProcAttr{}
	if t := openTerminal(); t != nil {
		defer t.close()
		if t.own, _ = unix.Getpgid(unix.Getppid()); t.interactive() {
			attr.Setpgid, attr.Pgid = true, unix.Getpgrp()
			attr.Foreground, attr.Ctty = true, int(t.file.Fd())
		}
	}
	p, err := os.StartProcess(w.path, w.argv, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr})
	if err != nil {
		var number syscall.Errno
		errors.As(err, &number)
		w.report(hasFailed, int(number))
		return err
	}
	w.pid = p.Pid
	signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU) // a message to a terminal must not stop the group
	w.report(hasStarted, w.pid)
	return p.Release() // reap waits for it
}

// serve handles the signals that have arrived.
func (w *watch) serve() {
	b := make([]byte, 64)
	n, _ := unix.Read(int(w.signals.Fd()), b)
	for _, s := range b[:max(n, 0)] {
		switch s := syscall.Signal(s); s {
		case syscall.SIGCHLD, syscall.SIGALRM, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU:
		default:
			w.pass(s)
		}
	}
	w.reap()
}

// pass forwards a signal that was sent to the process group to processes that
// have left the group. Of processes that left together, only the first gets it,
// because a program such as timeout forwards it by itself. A stop is sent to all
// of them.
func (w *watch) pass(s syscall.Signal) {
	all, err := family(os.Getpid(), nil)
	if err != nil {
		return
	}
	own := os.Getpid()
	isMember := map[int]bool{own: true}
	for _, p := range all {
		isMember[p.pid] = p.group == own
	}
	for _, p := range all {
		if p.group != own && (isMember[p.parent] || s == syscall.SIGTSTP || s == syscall.SIGCONT) {
			_ = p.signal(s)
		}
	}
}

// reap records children that have ended or stopped. Each orphaned process of
// the command becomes a child of this process, so the command has ended when
// there are no children.
func (w *watch) reap() {
	for w.pid != 0 && !w.alone {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD && adopts:
			w.alone = true
			w.report(isAlone, 0)
			return
		case err != nil || pid == 0:
			return
		case pid != w.pid:
		case status.Stopped():
			if !w.killing {
				w.report(hasStopped, int(status.StopSignal()))
			}
		default:
			w.report(hasEnded, exitStatusOf(status))
		}
	}
}

// exitStatusOf returns the exit status of a command as shells do.
func exitStatusOf(status syscall.WaitStatus) int {
	if status.Signaled() {
		return cli.ExitBySignal + int(status.Signal())
	}
	return status.ExitStatus()
}

// sayAtMost bounds the wait for the reader of a message.
const sayAtMost = time.Second

// kill ends the command. It kills the processes before it writes a message,
// because there may be no reader.
func (w *watch) kill(why string) {
	w.killing = true
	w.report(isKilling, 0)
	for w.pid != 0 && !w.alone {
		all, err := killAll(func() ([]process, error) { return family(os.Getpid(), nil) })
		if err == nil && (len(all) > 0 || !adopts) && !reachable(all) {
			break // processes of other users
		}
		poll := []unix.PollFd{{Fd: int32(w.signals.Fd()), Events: unix.POLLIN}}
		if n, _ := unix.Poll(poll, int(killEvery.Milliseconds())); n > 0 {
			w.serve()
		}
	}
	said := make(chan struct{})
	go func() { // ends when the message arrives or this process ends
		fmt.Fprintf(os.Stderr, "dsync: %s: the command is killed\n", why)
		close(said)
	}()
	select {
	case <-said:
	case <-time.After(sayAtMost):
	}
}

const (
	killEvery = 10 * time.Millisecond // until none is left
	// The interval between searches for processes that were started before
	// their parents were stopped.
	stopsAtMost = 20
)

// killAll first stops all processes, so that none of them starts another
// process or reacts to the end of another process. Then it kills them. It
// returns the processes that it found.
func killAll(family func() ([]process, error)) (all []process, err error) {
	known := map[int]bool{}
	for range stopsAtMost {
		found, familyErr := family()
		if err = familyErr; err != nil {
			break
		}
		before := len(all)
		for _, p := range found {
			if !known[p.pid] {
				known[p.pid] = true
				all = append(all, p)
				_ = p.signal(syscall.SIGSTOP)
			}
		}
		if len(all) == before {
			break
		}
	}
	for _, p := range all {
		_ = p.signal(syscall.SIGKILL)
	}
	return all, err
}

// reachable reports whether this process has permission to end one of the
// processes.
func reachable(all []process) bool {
	for _, p := range all {
		if p.signal(0) != unix.EPERM {
			return true
		}
	}
	return false
}

func nextTime(times *os.File) (time.Duration, error) {
	var b [8]byte
	n, err := unix.Read(int(times.Fd()), b[:]) // the writer writes all 8 in one call
	for err == unix.EINTR {
		n, err = unix.Read(int(times.Fd()), b[:])
	}
	if n < len(b) {
		return 0, errors.Join(err, errors.New("no time was reported"))
	}
	return time.Duration(binary.LittleEndian.Uint64(b[:])), nil
}

// wait returns when a new time or a signal has arrived, or after atMost. A new
// time takes precedence, however long this process was frozen. A wait lasts a
// second at most, because timers stop while the machine sleeps.
func (w *watch) wait(atMost time.Duration) (told, signaled bool, err error) {
	ms := min(max(atMost, 0), time.Second).Milliseconds()
	poll := []unix.PollFd{{Fd: int32(w.times.Fd()), Events: unix.POLLIN}, {Fd: int32(w.signals.Fd()), Events: unix.POLLIN}}
	_, err = unix.Poll(poll, int(ms))
	if err == unix.EINTR {
		return false, false, nil
	}
	return poll[0].Revents != 0, poll[1].Revents != 0, err
}
