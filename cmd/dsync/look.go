package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// Where a name is.
const (
	stateMoved = "moved" // sealed on the old backend
	stateHeld  = "held"  // somebody holds it, and it has not moved
	stateIdle  = "idle"  // nobody holds it, and it has not moved
)

// nameReport is what is known of one name. Its JSON is part of the command's interface.
type nameReport struct {
	Name       string   `json:"name"`
	State      string   `json:"state"`
	HeldOn     string   `json:"held_on,omitempty"` // old, new or both
	Mode       string   `json:"mode,omitempty"`    // exclusive, read or write
	Holders    int      `json:"holders,omitempty"` // more than 1 if several read it, and the others are about one of them
	Hold       string   `json:"hold,omitempty"`
	Owner      string   `json:"owner,omitempty"`
	TTLSeconds float64  `json:"ttl_seconds,omitempty"`
	Waiters    int      `json:"waiters"` // on the backend that holders of the name are on; -1 if it cannot tell
	Queue      []string `json:"queue,omitempty"`
	TokenFloor uint64   `json:"token_floor,omitempty"` // the last token of the old backend, if the name has moved
	Blocked    int      `json:"blocked,omitempty"`     // who wait on the old backend, though the name has moved
	Behind     string   `json:"behind,omitempty"`      // why somebody is behind
	brief      bool     // that was so for a moment
	client     string   // who is seen; "" is all those who wait in vain
}

// looker looks at names, and changes nothing.
type looker struct {
	from, to driver.Inspector
	sealer   move.Sealer   // nil with a gate
	floor    uint64        // of the tokens of from
	noneOld  bool          // with a gate: no process is in phase old
	lasting  time.Duration // how long to look at names that have not moved; 0 is for as long as those in use leave doubts, a second at most
}

func newLooker(p *pair, gate bool) (*looker, error) {
	from, okFrom := p.from.(driver.Inspector)
	to, okTo := p.to.(driver.Inspector)
	if !okFrom || !okTo {
		return nil, fmt.Errorf("not both backends tell who holds a lock: %w", errors.ErrUnsupported)
	}
	l := &looker{from: from, to: to, floor: p.fromFloor}
	if gate {
		return l, nil
	}
	l.sealer, _ = p.from.(move.Sealer)
	return l, nil
}

// lookers is how many names are looked at side by side.
const lookers = 64

// all looks at all names.
func (l *looker) all(ctx context.Context, names []string) ([]nameReport, error) {
	reports := make([]nameReport, len(names))
	every := make([]int, len(names))
	for i := range names {
		every[i] = i
	}
	if err := l.each(ctx, names, every, reports); err != nil {
		return nil, err
	}
	doubts := map[int]*doubt{}
	for i := range reports {
		if reports[i].open() || l.lasting > 0 {
			doubts[i] = &doubt{clients: map[string]*sight{}}
			doubts[i].see(&reports[i])
			reports[i].Behind = ""
		}
	}
	err := l.again(ctx, names, doubts, reports)
	for i, d := range doubts {
		reports[i].Behind = d.verdict()
	}
	return reports, err
}

// again looks at the names that there are doubts about, until it would tell no more.
func (l *looker) again(ctx context.Context, names []string, doubts map[int]*doubt, reports []nameReport) error {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	lasting := l.lasting > 0
	for end, looks := time.Now().Add(l.lasting), 1; looks <= moreLooks || time.Now().Before(end); looks++ {
		var due []int
		settled := true
		for i, d := range doubts {
			if d.settled(looks, lasting) {
				continue
			}
			settled = false
			if d.due(looks) {
				due = append(due, i)
			}
		}
		if settled {
			return nil
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := l.each(ctx, names, due, reports); err != nil {
			return err
		}
		for _, i := range due {
			doubts[i].see(&reports[i])
		}
		timer.Reset(lookEvery)
	}
	return nil
}

// each fills in the reports of some of the names.
func (l *looker) each(ctx context.Context, names []string, which []int, reports []nameReport) error {
	return sideBySide(ctx, lookers, len(which), func(ctx context.Context, n int) error {
		i := which[n]
		r, err := l.look(ctx, names[i])
		if err == nil && r.Behind != "" && r.State == stateHeld && r.client != strangers {
			r, err = l.follow(ctx, r)
		}
		reports[i] = r
		if err != nil {
			err = fmt.Errorf("%s: %w", show(names[i]), err)
		}
		return err
	})
}

func (l *looker) look(ctx context.Context, name string) (nameReport, error) {
	for {
		r, err := l.lookOnce(ctx, name)
		if !errors.Is(err, errMovedMeanwhile) {
			return r, err
		}
	}
}

var errMovedMeanwhile = errors.New("the name was sealed while it was looked at")

func (l *looker) lookOnce(ctx context.Context, name string) (nameReport, error) {
	r := nameReport{Name: name}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	floor, sealed, err := l.sealed(ctx, name)
	if err != nil {
		return r, fmt.Errorf("old backend: %w", err)
	}
	old, err := l.from.Inspect(ctx, name)
	if err != nil {
		return r, fmt.Errorf("old backend: %w", err)
	}
	now, err := l.to.Inspect(ctx, name)
	if err != nil {
		return r, fmt.Errorf("new backend: %w", err)
	}
	if sealed {
		l.moved(&r, floor, old, now)
		return r, nil
	}
	if _, sealed, err = l.sealed(ctx, name); err != nil {
		return r, fmt.Errorf("old backend: %w", err)
	} else if sealed {
		return r, errMovedMeanwhile
	}
	l.notMoved(&r, old, now)
	return r, nil
}

func (l *looker) sealed(ctx context.Context, name string) (floor uint64, sealed bool, err error) {
	if l.sealer == nil {
		return 0, false, nil
	}
	if floor, sealed, err = l.sealer.Sealed(ctx, name); floor > 0 {
		floor += l.floor
	}
	return floor, sealed, err
}

// moved describes a name that is sealed: the new backend has its holder, and whoever waits on the old one waits in vain.
func (l *looker) moved(r *nameReport, floor uint64, old, now driver.Status) {
	r.State, r.TokenFloor = stateMoved, floor
	r.holder(now, "new")
	if old.Waiters > 0 {
		r.Blocked = old.Waiters
		r.Behind = fmt.Sprintf("%d wait for it on the old backend, where it is never granted again", old.Waiters)
		if len(old.Queue) > 0 {
			r.Behind += fmt.Sprintf(": %q", old.Queue)
		}
	}
}

func (l *looker) notMoved(r *nameReport, old, now driver.Status) {
	r.State = stateIdle
	defer func() { r.client = l.client(r.Hold) }()
	switch {
	case old.Held && now.Held && l.sameHold(old, now):
		r.State = stateHeld
		r.holder(old, "both")
	case old.Held:
		r.State = stateHeld
		r.holder(old, "old")
		if !now.Held && !strings.HasPrefix(old.Hold, migrate.HoldPrefix) { // else its holder waits for whoever has it there, or was killed
			r.Behind = l.oldAlone(r)
		}
	case now.Held:
		r.State = stateHeld
		r.holder(now, "new")
		if l.sealer != nil {
			r.Behind = "it is held on the new backend and not sealed on the old one, so a program uses the new backend outside of the migration: " + r.who()
		}
	default:
		r.Waiters = max(old.Waiters, now.Waiters)
	}
}

// oldAlone says what it means that a name is held on the old backend alone.
func (l *looker) oldAlone(r *nameReport) string {
	switch {
	case l.sealer == nil && l.noneOld:
		return "a program that takes no part in the migration holds it, since no process is in phase old: " + r.who()
	case l.sealer == nil:
		return ""
	}
	return "a program that knows the old backend alone holds it: " + r.who()
}

// named reports whether a hold is as those of programs with dsync are: it names its client first.
func named(hold string) bool { return strings.Contains(hold, ":") }

// sameHold reports whether the two are halves of one hold. A backend that keeps no seals may not keep the identity of holds either, and then
// both being held is all there is to know.
func (l *looker) sameHold(old, now driver.Status) bool {
	return old.Hold == now.Hold || l.sealer == nil && (!named(old.Hold) || !named(now.Hold))
}

// strangers is the client of all holds that name none, where programs in the migration have holds that do. So there is no doubt about these,
// and they are not told apart: the value of a string lock may be another one each time.
const strangers = ":"

// client returns who has a hold.
func (l *looker) client(hold string) string {
	if l.sealer != nil && !named(hold) {
		return strangers
	}
	client, _, _ := strings.Cut(hold, ":")
	return client
}

// holder fills in who holds the name, if anybody does.
func (r *nameReport) holder(s driver.Status, on string) {
	r.Waiters, r.Queue = s.Waiters, s.Queue
	if s.Held {
		r.HeldOn, r.Mode, r.Holders = on, s.Mode.String(), s.Holders
		r.Hold, r.Owner, r.TTLSeconds = s.Hold, s.Owner, s.TTL.Round(time.Millisecond).Seconds()
	}
}

// who names the holder.
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
