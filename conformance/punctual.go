package conformance

import (
	"errors"
	"fmt"
	"time"
)

// slack is how much later than the driver claims something may happen in real time. In fake time there is no slack.
const slack = 500 * time.Millisecond

// lateError is the error of a check that saw something happen later than the driver claims.
type lateError struct{ error }

// late returns an error if something came more than slack later than the driver claims; what says what.
func (e *env) late(by time.Duration, what string, args ...any) error {
	if by <= 0 || by <= slack && !e.fakeTime {
		return nil
	}
	return &lateError{fmt.Errorf("%s: %v too late", fmt.Sprintf(what, args...), by)}
}

// punctual runs f, in real time up to three times while f returns a lateError: a machine that stands still delays one try, and not all of
// them.
func (e *env) punctual(f func() error) (err error) {
	for range 3 {
		if err = f(); e.fakeTime || !errors.As(err, new(*lateError)) {
			break
		}
	}
	return err
}
