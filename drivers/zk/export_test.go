package zk

import "time"

// CheckAfter sets the age at which a hold gets a watch on its own node.
func (d *Driver) CheckAfter(age time.Duration) { d.checkAfter.Store(int64(age)) }

// NudgeAfter sets how long a server may be silent before it gets a nudge.
func (d *Driver) NudgeAfter(quiet time.Duration) { d.nudgeAfter.Store(int64(quiet)) }

// HangAfter sets how long a nudge may stay unanswered.
func (d *Driver) HangAfter(silent time.Duration) { d.hangAfter.Store(int64(silent)) }

// Direct returns the number of requests that bypassed the library on the
// present connections.
func (d *Driver) Direct() int {
	n := 0
	for _, s := range d.sessions.All() {
		if l := s.link.Load(); l != nil {
			l.mu.Lock()
			n += int(l.directs)
			l.mu.Unlock()
		}
	}
	return n
}

// MaxUnderway is the number of unanswered requests at which a session takes no
// new calls.
const MaxUnderway = maxUnderway

// Underway returns the number of unanswered requests. Each of them occupies a
// goroutine.
func (d *Driver) Underway() int {
	n := 0
	for _, s := range d.sessions.All() {
		s.mu.Lock()
		n += s.underway
		s.mu.Unlock()
	}
	return n
}

// NextSet makes the next change of a latch begin another set of ids.
func (d *Driver) NextSet() { d.changes.begun -= int64(knownFor) }

// KeepSetsFor sets the age at which a set of ids is removed.
func (d *Driver) KeepSetsFor(age time.Duration) { d.changes.keptFor = age }

// MaxPaths sets the number of bytes that the paths of a session's nodes may
// have. It must be called before the first request.
func (d *Driver) MaxPaths(n int) { d.sessions.MaxLoad = n }

// PasswordsEvery sets how often a session that begins later looks for further
// passwords.
func (d *Driver) PasswordsEvery(pause time.Duration) { d.passwordsEvery.Store(int64(pause)) }
