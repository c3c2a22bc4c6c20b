package cli

import (
	"errors"
	"fmt"
	"strings"
)

// Exit statuses of all commands except run. They are part of the command's
// interface.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnfinished  = 3
	ExitRefused     = 4
	ExitInterrupted = 130
)

// Exit statuses of `dsync run`, in addition to those of its command. They
// follow sysexits.h, env(1) and shells.
const (
	ExitMisused       = 64
	ExitBroken        = 70
	ExitLocked        = 75
	ExitLost          = 76
	ExitOutOfReach    = 77
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitBySignal      = 128 // plus the number of the signal
)

type statusRow struct {
	ofRun           bool
	status, meaning string
}

// statuses is the table of docs/command.md. The help of run shows the rows of
// run, too. The help of every other command describes its exit statuses in its
// own words.
var statuses = [...]statusRow{
	{true, "0-255", "the command has ended with this status"},
	{true, "128+n", "signal n ended the command, or ended dsync before it started the command"},
	{true, "64", "the command line or the URL is wrong, or the backend refuses or does not support the request, or has a different limit of permits"},
	{true, "70", "dsync itself failed: it could not watch the command, and ended it"},
	{true, "75", "another client held the lock, or too few permits were free; the command was not started"},
	{true, "76", "the lock was lost; the command was ended, or another command may have run at the same time"},
	{true, "77", "the backend is out of reach; the command was not started"},
	{true, "126", "the command cannot be executed"},
	{true, "127", "the command was not found"},
	{false, "0", "done"},
	{false, "1", "the backend is out of reach, or another error occurred; doctor found a fault"},
	{false, "2", "the command line is wrong"},
	{false, "3", "not yet: a program is behind, names are left, the name has another holder, or the backend is in use"},
	{false, "4", "this backend does not support it, or not in this way"},
	{false, "130", "interrupted"},
}

// StatusTable returns the statuses of run as text for a terminal.
func StatusTable() string {
	var b strings.Builder
	for _, row := range statuses {
		if row.ofRun {
			fmt.Fprintf(&b, "  %5s  %s\n", row.status, row.meaning)
		}
	}
	return b.String()
}

// exitError is an error with the exit status of the program. If it wraps no
// error, the program prints nothing.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return strings.TrimPrefix(e.err.Error(), "dsync: ") // the program adds its name to all errors
}

func (e *exitError) Unwrap() error { return e.err }

func Exit(status int, err error) error { return &exitError{status, err} }

// Misused converts a usage error to an error of `dsync run`.
func Misused(format string, args ...any) error {
	return Exit(ExitMisused, fmt.Errorf(format, args...))
}

// StatusOf returns the exit status for err.
func StatusOf(err error) (int, bool) {
	var e *exitError
	if errors.As(err, &e) {
		return e.status, true
	}
	return 0, false
}

// UsageError is a mistake in the arguments of the program.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

func Usage(err error) error { return UsageError{err} }

// UnfinishedError describes the remaining work.
type UnfinishedError struct{ error }

func (e UnfinishedError) Unwrap() error { return e.error }

func Unfinished(format string, args ...any) error {
	return UnfinishedError{fmt.Errorf(format, args...)}
}
