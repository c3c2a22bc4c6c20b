//go:build linux || darwin

package runjob

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the controlling terminal of this process. A nil terminal is none.
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

// shared reports whether another group leads the session: a shell, which lets
// jobs go on that were stopped.
func (t *terminal) shared() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	leader, err := unix.Getpgid(session)
	return err == nil && leader != t.own
}

// interactive reports whether the command begins in the foreground. In a
// pipeline, others of this group have the terminal, and the command gets it
// when it asks for it.
func (t *terminal) interactive() bool {
	return t != nil && t.mine() && term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
}

// give puts a group into the foreground. SIGTTOU is ignored, which would stop
// who does so in the background.
func (t *terminal) give(group int) {
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

// take puts the group of this process into the foreground in place of another
// one, or of one that has ended, and reports whether it did.
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
