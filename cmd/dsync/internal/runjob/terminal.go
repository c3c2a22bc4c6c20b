//go:build linux || darwin

package runjob

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the controlling terminal of this process. It is nil if there is
// none.
type terminal struct {
	file *os.File
	own  int // the process group of this process
}

func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{file, unix.Getpgrp()}
}

func (t *terminal) close() {
	if t != nil {
		t.file.Close()
	}
}

// mine reports whether the group of this process is in the foreground.
func (t *terminal) mine() bool { return t.foreground() == t.own }

func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// shared reports whether another group leads the session. That group is a
// shell, which can continue stopped jobs.
func (t *terminal) shared() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	leader, err := unix.Getpgid(session)
	return err == nil && leader != t.own
}

// interactive reports whether the command begins in the foreground. In a
// pipeline, other members of this group use the terminal, and the command gets
// it on request.
func (t *terminal) interactive() bool {
	return t != nil && t.mine() && term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
}

// give puts a group into the foreground. It ignores SIGTTOU, which would stop a
// caller in the background.
func (t *terminal) give(group int) {
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

// take puts the group of this process into the foreground in place of another
// group, which may have ended. It reports whether it succeeded.
func (t *terminal) take(from int) bool {
	if t == nil {
		return false
	}
	group := t.foreground()
	if group != from && (group <= 0 || unix.Kill(-group, 0) != unix.ESRCH) {
		return false
	}
	t.give(t.own)
	return true
}
