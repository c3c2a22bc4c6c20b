package conformance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// modeMutants are, for each check that is run once more in a mode, the first mutant of that check, broken in this mode alone. Checks of the
// group sharing may catch it, too.
func modeMutants() (all []mutant) {
	of := slices.Concat(waitingMutants, leaseMutants, ownershipMutants, capabilityMutants, faultMutants, lostMutants, expiryMutants, boundsMutants, lossMutants)
	for _, c := range modeChecks {
		for _, mode := range moreModes {
			base, ok := strings.CutSuffix(c.Name, "/"+mode.String())
			i := slices.IndexFunc(of, func(m mutant) bool { return m.check == base && m.mutate != nil && !m.clock })
			if ok && i >= 0 {
				all = append(all, of[i].inMode(mode))
			}
		}
	}
	return all
}

// inMode returns a mutant that is broken for requests in one mode.
func (m mutant) inMode(mode driver.Mode) mutant {
	mutate := m.mutate
	m.check += "/" + mode.String()
	m.mode = mode
	m.mutate = func(d *memory.Driver) driver.Driver { return &brokenInMode{broken: mutate(d).(*broken), mode: mode} }
	return m
}

type brokenInMode struct {
	*broken
	mode   driver.Mode
	leases sync.Map // in this mode
}

func (d *brokenInMode) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if r.Mode != d.mode {
		return d.Driver.Acquire(ctx, r)
	}
	l, err := d.broken.Acquire(ctx, r)
	d.leases.Store(l, true)
	return l, err
}

// RenewAll implements driver.BatchRenewer, for leases that are all in one mode.
func (d *brokenInMode) RenewAll(ctx context.Context, leases []driver.Lease, done func(int, error)) {
	if len(leases) == 0 {
		d.Driver.RenewAll(ctx, leases, done)
		return
	}
	if _, is := d.leases.Load(leases[0]); is {
		d.broken.RenewAll(ctx, leases, done)
		return
	}
	d.Driver.RenewAll(ctx, leases, done)
}

// TestModesAreRefusedTogether: of what a driver does not offer, each check says that, and nothing else.
func TestModesAreRefusedTogether(t *testing.T) {
	h := onMemory(nil, func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, info: func(i driver.Info) driver.Info {
			i.ReadWrite, i.Permits = driver.Support{}, driver.Support{}
			return i
		}}
	})
	for _, c := range slices.Concat(sharingChecks, permitChecks, modeChecks) {
		want := sharing.name
		if strings.HasPrefix(c.Name, "permits/") || strings.HasSuffix(c.Name, "/permit") {
			want = permitting.name
		}
		if r := c.result(t, h); r.refused != want || r.err != nil {
			t.Errorf("%s on a driver with exclusive locks alone: got refused %q and %v, want %q", c.Name, r.refused, r.err, want)
		}
	}
}
