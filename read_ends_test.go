package dsync_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestLossOfASharedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		d := s.NewDriver()
		c, other := newClient(t, d, nil), newClient(t, s.NewDriver(), nil)
		for name, lose := range map[string]func(of string){
			"removed": func(string) {
				if err := other.ForceUnlock(t.Context(), "x"); err != nil {
					t.Error(err)
				}
			},
			"expired":    s.ExpireHold,
			"cut off":    func(string) { d.Cut() },
			"no answers": func(string) { d.Inject(memory.Fault{Kind: memory.Hang}) },
		} {
			apart := mustLock(t, other, "x", dsync.Read())
			var leases []*dsync.Lease
			for range 100 {
				leases = append(leases, mustLock(t, c, "x", dsync.Read()))
			}
			time.Sleep(time.Second)
			younger := mustLock(t, c, "x", dsync.Read())
			status, err := other.Inspect(t.Context(), "x")
			if err != nil || status.Holders != 3 {
				t.Errorf("%s: %d holders, want 3; error %v", name, status.Holders, err)
			}
			lose(leases[0].Owner()) // for a call of the client this is also its Hold
			for _, l := range leases {
				<-l.Done()
				if !errors.Is(l.Err(), dsync.ErrLost) || !errors.Is(l.Unlock(t.Context()), dsync.ErrLost) {
					t.Errorf("%s: Err %v, want ErrLost", name, l.Err())
				}
			}
			if name == "expired" {
				mustUnlock(t, younger)
			} else if <-younger.Done(); !errors.Is(younger.Err(), dsync.ErrLost) {
				t.Errorf("%s: Err of the other hold: %v, want ErrLost", name, younger.Err())
			}
			if name == "removed" {
				<-apart.Done()
			} else {
				mustUnlock(t, apart)
			}
			d.Heal()
			time.Sleep(time.Minute)
			mustUnlock(t, mustLock(t, other, "x"))
		}
	})
}

func TestCloseWithReaders(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		old := mustLock(t, a, "x", dsync.Read())
		time.Sleep(time.Second)
		leases := []*dsync.Lease{old, mustLock(t, a, "x", dsync.Read()), mustLock(t, a, "x", dsync.Read())}
		granted := make(chan *dsync.Lease)
		go func() { granted <- mustLock(t, b, "x", dsync.Write()) }()
		synctest.Wait()
		waits := make(chan error)
		go func() {
			_, err := a.Lock(t.Context(), "x", dsync.Write())
			waits <- err
		}()
		synctest.Wait()
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("error %v from the waiter, want ErrClosed", err)
		}
		for _, l := range leases {
			if err := l.Err(); !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
				t.Errorf("Err %v, want ErrNotHeld", err)
			}
		}
		mustUnlock(t, <-granted)
		if n := dsync.KnownNames(a); n != 0 {
			t.Errorf("%d names left", n)
		}
	})
}
