package main

import (
	"errors"
	"fmt"
	"strings"
)

// The exit statuses of `dsync run` beside those of its command: as sysexits.h, env(1) and shells have them.
const (
	exitMisused       = 64
	exitBroken        = 70
	exitLocked        = 75
	exitLost          = 76
	exitOutOfReach    = 77
	exitNotExecutable = 126
	exitNotFound      = 127
	exitBySignal      = 128 // and the number of the signal
)

// runStatuses is the table of the help and of docs/command.md.
var runStatuses = [...]struct{ status, meaning string }{
	{"0-255", "the command has ended with this status"},
	{"128+n", "the command was ended by signal n, or dsync was before it started the command"},
	{"64", "the command line or the URL is wrong, or the backend refuses, or cannot do what is asked for"},
	{"70", "dsync itself failed: it could not watch the command, and ended it"},
	{"75", "somebody else held the lock; the command was not started"},
	{"76", "the lock was lost; the command was ended, or another one may have run beside it"},
	{"77", "the backend is out of reach; the command was not started"},
	{"126", "the command cannot be executed"},
	{"127", "the command was not found"},
}

// statusTable returns runStatuses as text for a terminal.
func statusTable() string {
	var b strings.Builder
	for _, row := range runStatuses {
		fmt.Fprintf(&b, "  %5s  %s\n", row.status, row.meaning)
	}
	return b.String()
}

// exitError is an error with the status that the program ends with. Without an error inside there is nothing to say.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return strings.TrimPrefix(e.err.Error(), "dsync: ") // the program puts its name before all errors
}

func (e *exitError) Unwrap() error { return e.err }

func exit(status int, err error) error { return &exitError{status, err} }

// misused makes the error of a wrong call one of `dsync run`.
func misused(format string, args ...any) error {
	return exit(exitMisused, fmt.Errorf(format, args...))
}

// statusOf returns the status that err asks for.
func statusOf(err error) (int, bool) {
	var e *exitError
	if errors.As(err, &e) {
		return e.status, true
	}
	return 0, false
}
