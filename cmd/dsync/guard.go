//go:build linux || darwin

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// guard is a second process of this program, which kills its process group, and so the command with all that it has started there: when
// it is time, unless it was told a later time before, or when this process is gone. So a process that is frozen or killed leaves no
// command behind that runs without the lock.
type guard struct {
	pid    int // and the process group
	times  *os.File
	voice  *os.File // of the guard: a byte when it is ready, and one before it kills
	reaped bool
}

// guardStart bounds how long a guard takes to be ready.
const guardStart = 30 * time.Second

// startGuard starts a guard, and returns when it is ready to be told a time.
func startGuard() (*guard, error) {
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
	p, err := os.StartProcess(self, []string{"dsync", guardName}, &os.ProcAttr{Files: []*os.File{in, out, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	out.Close()
	if err != nil {
		times.Close()
		voice.Close()
		return nil, err
	}
	g := &guard{pid: p.Pid, times: times, voice: voice}
	if err := errors.Join(p.Release(), g.hear(guardStart)); err != nil {
		g.end()
		return nil, err
	}
	return g, nil
}

// hear waits for the voice of the guard.
func (g *guard) hear(atMost time.Duration) error {
	if err := g.voice.SetReadDeadline(time.Now().Add(atMost)); err != nil {
		return err
	}
	_, err := g.voice.Read(make([]byte, 1))
	return err
}

// tell tells the guard when to kill.
func (g *guard) tell(killAt time.Time) error {
	now := sinceBoot() // first: what comes between the two readings makes the time earlier
	at := now + time.Until(killAt)
	if err := g.times.SetWriteDeadline(time.Now().Add(deadlineEvery)); err != nil {
		return err
	}
	_, err := g.times.Write(binary.LittleEndian.AppendUint64(nil, uint64(at)))
	return err
}

// signal sends a signal to the group.
func (g *guard) signal(s syscall.Signal) { _ = unix.Kill(-g.pid, s) }

// hasFellows reports whether others are in the group that have not ended.
func (g *guard) hasFellows() bool {
	pids, err := members(g.pid)
	return err == nil && slices.ContainsFunc(pids, func(pid int) bool { return pid != g.pid })
}

// end kills the guard, waits for its end, and reports whether it has killed the group itself, at the first call. From then on the number of
// the group may be that of another one.
func (g *guard) end() (hasKilled bool) {
	if !g.reaped {
		_ = unix.Kill(g.pid, syscall.SIGKILL)
		for {
			if _, err := syscall.Wait4(g.pid, nil, 0, nil); err != syscall.EINTR {
				break
			}
		}
		g.reaped = true
	}
	hasKilled = g.hear(deadlineEvery) == nil // at once: nobody else has the other end
	g.times.Close()
	g.voice.Close()
	return hasKilled
}

func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    guardName,
		Hidden: true,
		Args:   noArguments,
		RunE: func(*cobra.Command, []string) error {
			if unix.Getpgrp() != os.Getpid() {
				return usageError{errors.New("this command is a part of run, which starts it")}
			}
			return stand(os.Stdin, os.Stdout)
		},
	}
}

// stand is the guard. It returns only if something is wrong.
func stand(times, voice *os.File) error {
	// The group gets signals that are for the command.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
		syscall.SIGPIPE, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	if _, err := voice.Write([]byte{0}); err != nil {
		return err
	}
	killAt := time.Duration(math.MaxInt64) // the first time is told before anybody else is in the group
	for {
		later, err := readable(times, killAt-sinceBoot())
		switch {
		case err != nil:
			return err
		case later:
			if killAt, err = nextTime(times); err != nil {
				killGroup(voice, "dsync was killed, which held the lock")
				return nil
			}
		case killAt <= sinceBoot():
			killGroup(voice, "dsync has not renewed the lock, which is about to end")
			return nil
		}
	}
}

// sayAtMost bounds how long the group waits for a message whose reader does not read.
const sayAtMost = 20 * time.Millisecond

// killGroup ends the group. This process leaves the group before: a group without members is none, so a command cannot join that is
// started too late, by a dsync that was frozen just before. Where dsync is gone, nobody starts a command any more, and this process cannot
// leave: the end of the group is its own.
func killGroup(voice *os.File, why string) {
	_, _ = voice.Write([]byte{0}) // nobody may be there to hear
	said := make(chan struct{})
	go func() { // ends with the message, or with this process
		fmt.Fprintf(os.Stderr, "dsync: %s: the command is killed\n", why)
		close(said)
	}()
	group := unix.Getpgrp()
	if !leaveGroup() {
		select {
		case <-said:
		case <-time.After(sayAtMost):
		}
	}
	_ = unix.Kill(-group, syscall.SIGKILL) // nobody may be there
	<-said
}

// leaveGroup moves this process into the group of its parent, and reports whether that was possible.
func leaveGroup() bool {
	group, err := unix.Getpgid(unix.Getppid())
	return err == nil && group > 0 && unix.Setpgid(0, group) == nil
}

func nextTime(times *os.File) (time.Duration, error) {
	var b [8]byte
	n, err := unix.Read(int(times.Fd()), b[:]) // the writer writes all 8 at once
	for err == unix.EINTR {
		n, err = unix.Read(int(times.Fd()), b[:])
	}
	if n < len(b) {
		return 0, errors.Join(err, errors.New("no time was told"))
	}
	return time.Duration(binary.LittleEndian.Uint64(b[:])), nil
}

// readable waits until there is something to read, or for some time: of both, what there is to read counts, however long this process was
// frozen. It waits for a second at most, for timers stand still while the machine sleeps.
func readable(file *os.File, atMost time.Duration) (bool, error) {
	ms := min(max(atMost, 0), time.Second).Milliseconds()
	poll := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(ms))
	if err == unix.EINTR {
		return false, nil
	}
	return n > 0, err
}
