package conformance

import (
	"errors"
	"fmt"
	"time"
)

// slack is how much later than a driver has claimed something may happen in real time. In fake time it is nothing.
const slack = 500 * time.Millisecond

// lateError is how a check ends that saw something happen later than a driver has claimed.
type lateError struct{ error }

// late returns an error if something came more than slack later than the driver claims; what says what.
func (e *env) late(by time.Duration, what string, args ...any) error {
	if by <= 0 || by <= slack && !e.fakeTime {
		return nil
	}
	return &lateError{fmt.Errorf("%s: %v too late", fmt.Sprintf(what, args...), by)}
}

// punctual runs f, in real time up to three times for as long as it sees something that is late: a machine that stands still makes one
// try late, and not all of them.
func (e *env) punctual(f func() error) (err error) {
	for range 3 {
		if err = f(); e.fakeTime || !errors.As(err, new(*lateError)) {
			break
		}
	}
	return err
}
