package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// ErrOperator reports that another operator is changing names, or the gate, by
// hand. Concurrent changes are safe, but may not have the effect that either
// operator intends.
var ErrOperator = errors.New("another operator is at work on this migration")

const (
	// operatorName is locked on the old backend while an operator changes
	// names, or the gate, by hand.
	operatorName = reserved + "operator"

	// operatorTTL is how long an operator that was killed blocks the next
	// operator, who waits for longer.
	operatorTTL = 5 * time.Second
)

// Operate registers an operator until end is called. It returns [ErrOperator]
// if another operator is registered, with the owner if the backend stores it.
// If reserved names are not permitted, Operate does nothing.
func (d *Driver) Operate(ctx context.Context, what string) (end func(), err error) {
	bound, leave, err := d.closable(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	r := d.ownRequest(operatorName)
	r.Owner, r.TTL = d.process+", "+what, d.nearestTTL(min(operatorTTL, d.ttl))
	wait, cancel := context.WithTimeout(bound, r.TTL+operatorTTL/5)
	defer cancel()
	l, err := d.from.Acquire(wait, r)
	if err != nil {
		if bound.Err() == nil && (errors.Is(err, driver.ErrLocked) || wait.Err() != nil && !errors.Is(err, driver.ErrUnavailable)) {
			return nil, d.otherOperator(bound)
		}
		return func() {}, d.closing(ctx, unlessRefused(d.permitted(bound, d.from.explain(err))))
	}
	var c *carried
	if !d.from.info.KeepsAlive {
		c = d.carry(d.from, l, r.TTL, func() bool { return time.Now().Before(l.Expires()) }, func(error) {})
	}
	return func() {
		c.leave()
		letGo(l)
	}, nil
}

func (d *Driver) otherOperator(ctx context.Context) error {
	who := "the backend does not tell which"
	if inspector, ok := d.from.Driver.(driver.Inspector); ok {
		if s, err := inspector.Inspect(ctx, operatorName); err == nil && s.Held {
			who = cmp.Or(s.Owner, s.Hold)
		}
	}
	return fmt.Errorf("%w: %s: repeat it when that has ended", ErrOperator, who)
}
