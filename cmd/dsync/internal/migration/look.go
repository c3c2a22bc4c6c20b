package migration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// The states of a name.
const (
	stateMoved = "moved" // sealed on the old backend
	stateHeld  = "held"  // held, and has not moved
	stateIdle  = "idle"  // free, and has not moved

	stateRefused = "refused" // a backend does not accept the name
)

// nameReport describes one name. Its JSON is part of the command's interface.
type nameReport struct {
	Name       string   `json:"name"`
	State      string   `json:"state"`
	HeldOn     string   `json:"held_on,omitempty"` // old, new or both
	Mode       string   `json:"mode,omitempty"`    // exclusive, read or write
	Holders    int      `json:"holders,omitempty"` // more than 1 for several readers; the other fields describe one of them
	Hold       string   `json:"hold,omitempty"`
	Owner      string   `json:"owner,omitempty"`
	TTLSeconds float64  `json:"ttl_seconds,omitempty"`
	Waiters    int      `json:"waiters"` // on the backend of the name's holders; -1 if it cannot tell
	Queue      []string `json:"queue,omitempty"`
	TokenFloor uint64   `json:"token_floor,omitempty"` // the last token of the old backend, if the name has moved
	Blocked    int      `json:"blocked,omitempty"`     // waiters on the old backend, though the name has moved
	Behind     string   `json:"behind,omitempty"`      // why a client is behind

	idle, blocked int // consecutive looks without a holder but with a waiter for a moved name
}

// looker inspects names and changes nothing.
type looker struct {
	from, to driver.Inspector
	sealer   move.Sealer   // nil with a gate
	floor    uint64        // of the tokens of from
	sessions bool          // from shows the holder's application_name, but not its hold
	lasting  time.Duration // how long to watch names that have not moved; 0 means one look
}

func newLooker(p *pair, gate bool) (*looker, error) {
	from, okFrom := p.from.(driver.Inspector)
	to, okTo := p.to.(driver.Inspector)
	if !okFrom || !okTo {
		return nil, fmt.Errorf("at least one backend does not report the holders of locks: %w", errors.ErrUnsupported)
	}
	l := &looker{from: from, to: to, floor: p.fromFloor, sessions: p.from.Info().Name == "pglock"}
	if !gate {
		l.sealer, _ = p.from.(move.Sealer)
	}
	return l, nil
}

// refused reports a name that a backend does not accept.
func refused(name string, why error) nameReport {
	return nameReport{Name: name, State: stateRefused, Behind: "it cannot move: " + why.Error()}
}

// refusalOf returns the error for names that are refused, or nil if there are
// none.
func refusalOf(names []nameReport) error {
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%s refused by a backend: %w", cli.Are(len(names), "name"), errors.ErrUnsupported)
}

// lookers is the number of names that are inspected concurrently.
const lookers = 64

const (
	lookEvery = 20 * time.Millisecond
	idleLooks = 20 // looks at a name without a holder before only one in this many is made

	// A program in the migration that is waiting for a name soon notices its
	// seal. A waiter that is still there after that many looks is behind.
	waitLooks = 3
)

// all inspects all names. Until the time is up, it repeats this for names whose
// reports may change. If it fails after it has inspected all names once, it
// returns the reports together with the error.
func (l *looker) all(ctx context.Context, names []string) ([]nameReport, error) {
	reports := make([]nameReport, len(names))
	due := make([]int, len(names))
	for i := range names {
		due[i] = i
	}
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for end, looks := time.Now().Add(l.lasting), 1; ; looks++ {
		if err := l.each(ctx, names, due, reports); err != nil {
			if looks == 1 {
				return reports[:0], err
			}
			return reports, err
		}
		due = due[:0]
		again, lasting := false, time.Now().Before(end)
		for i, r := range reports {
			switch {
			case r.State == stateRefused, r.State == stateMoved && (r.blocked == 0 || r.blocked >= waitLooks), r.State == stateHeld && r.Behind != "":
				continue // another look would show nothing new
			case r.State != stateMoved && !lasting:
				continue
			case r.idle < idleLooks || looks%idleLooks == 0:
				due = append(due, i)
			}
			again = true
		}
		if !again {
			return reports, nil
		}
		select {
		case <-timer.C:
			timer.Reset(lookEvery)
		case <-ctx.Done():
			return reports, ctx.Err()
		}
	}
}

// each fills in the reports of the given names.
func (l *looker) each(ctx context.Context, names []string, which []int, reports []nameReport) error {
	return cli.SideBySide(ctx, lookers, len(which), func(ctx context.Context, n int) error {
		i := which[n]
		r, err := l.look(ctx, names[i])
		if errors.Is(err, errors.ErrUnsupported) {
			r, err = refused(names[i], err), nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", cli.Show(names[i]), err)
		}
		if r.State == stateIdle {
			r.idle = reports[i].idle + 1
		}
		if r.Blocked > 0 {
			r.blocked = reports[i].blocked + 1
		}
		reports[i] = r
		return nil
	})
}

// look inspects one name, and does so again if the name was sealed in the
// meantime.
func (l *looker) look(ctx context.Context, name string) (r nameReport, err error) {
	r.Name = name
	for ctx.Err() == nil {
		floor, before, err := l.sealed(ctx, name)
		if err != nil {
			return r, err
		}
		old, err := l.from.Inspect(ctx, name)
		if err != nil {
			return r, fmt.Errorf("old backend: %w", err)
		}
		now, err := l.to.Inspect(ctx, name)
		if err != nil {
			return r, fmt.Errorf("new backend: %w", err)
		}
		if before {
			l.moved(&r, floor, old, now)
			return r, nil
		}
		if _, after, err := l.sealed(ctx, name); err != nil || !after {
			l.notMoved(&r, old, now)
			return r, err
		}
	}
	return r, ctx.Err()
}

func (l *looker) sealed(ctx context.Context, name string) (floor uint64, sealed bool, err error) {
	if l.sealer == nil {
		return 0, false, nil
	}
	if floor, sealed, err = l.sealer.Sealed(ctx, name); err != nil {
		return 0, false, fmt.Errorf("old backend: %w", err)
	}
	if floor > 0 {
		floor += l.floor
	}
	return floor, sealed, nil
}

// moved describes a sealed name. Its holder is on the new backend, so clients
// on the old backend wait without success.
func (l *looker) moved(r *nameReport, floor uint64, old, now driver.Status) {
	r.State, r.TokenFloor = stateMoved, floor
	r.holder(now, "new")
	if old.Waiters > 0 {
		r.Blocked = old.Waiters
		r.Behind = fmt.Sprintf("%s waiting for it on the old backend, where it is never granted again", cli.Are(old.Waiters, "client"))
		if len(old.Queue) > 0 {
			r.Behind += fmt.Sprintf(": %q", old.Queue)
		}
	}
}

// notMoved describes a name that is not sealed. Holds of programs in the
// migration are marked, so any other hold belongs to a program outside of it.
func (l *looker) notMoved(r *nameReport, old, now driver.Status) {
	r.State = stateIdle
	switch {
	case old.Held:
		r.State = stateHeld
		if r.holder(old, "old"); now.Held && (old.Hold == now.Hold || l.sealer == nil) {
			r.HeldOn = "both"
		}
		if !takesPart(old) && !(l.sessions && strings.HasPrefix(old.Owner, migrate.HoldPrefix)) {
			r.Behind = "a program that only knows the old backend holds it: " + r.who()
		}
	case now.Held:
		r.State = stateHeld
		r.holder(now, "new")
		if l.sealer != nil && !takesPart(now) {
			r.Behind = "it is held on the new backend and not sealed on the old one, so a program outside of the migration uses the new backend: " + r.who()
		}
	default:
		r.Waiters = max(old.Waiters, now.Waiters)
	}
}

// takesPart reports whether a hold belongs to a migration.
func takesPart(s driver.Status) bool { return strings.HasPrefix(s.Hold, migrate.HoldPrefix) }

// holder fills in the holder of the name, if there is one.
func (r *nameReport) holder(s driver.Status, on string) {
	r.Waiters, r.Queue = s.Waiters, s.Queue
	if s.Held {
		r.HeldOn, r.Mode, r.Holders = on, s.Mode.String(), max(1, s.Holders)
		r.Hold, r.Owner, r.TTLSeconds = s.Hold, s.Owner, s.TTL.Round(time.Millisecond).Seconds()
	}
}

// who returns a text that names the holder.
func (r *nameReport) who() string {
	switch {
	case r.HeldOn == "":
		return ""
	case r.Owner == "" || r.Owner == r.Hold:
		return r.Hold
	case r.Hold == "":
		return r.Owner
	}
	return r.Owner + ", " + r.Hold
}
