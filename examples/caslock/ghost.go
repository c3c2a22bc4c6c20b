//go:build unix

package caslock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// ghost is what a request may have left whose answer never came, or may leave yet.
type ghost struct {
	name, hold string
	version    uint64 // the request is carried out while the record has this version, or never
}

// exorcise makes sure that the ghost is gone and cannot come. A record that the request still waits for is written once more: its
// condition never holds again. To see that the hold is not there would not do, since the request may be on its way.
func (d *Driver) exorcise(ctx context.Context, g ghost) error {
	r, version, err := d.get(ctx, g.name)
	if err == nil && (r.Hold == g.hold || version == g.version) {
		_, err = d.put(ctx, g.name, record{Token: r.Token}, version)
	}
	return err
}

// sweeper settles ghosts, one after the other, for as long as it takes.
type sweeper struct {
	settle func(context.Context, ghost) error
	life   context.Context // ends with the context of Close
	end    context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	ghosts []ghost
}

func (s *sweeper) clean(g ghost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ghosts = append(s.ghosts, g); len(s.ghosts) == 1 {
		s.work.Go(s.run) // ends when no ghost is left
	}
}

func (s *sweeper) run() {
	const most = time.Second
	for pause := most / 100; ; {
		s.mu.Lock()
		g := s.ghosts[0]
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.life, most)
		err := s.settle(ctx, g)
		cancel()
		if s.life.Err() != nil {
			return
		}
		s.mu.Lock()
		if s.ghosts = s.ghosts[1:]; err != nil {
			s.ghosts = append(s.ghosts, g) // also after a conflict: to look again
		}
		left := len(s.ghosts)
		s.mu.Unlock()
		switch {
		case left == 0:
			return
		case err == nil:
			pause = most / 100
			continue
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, most)
		case <-s.life.Done():
		}
	}
}

// close waits until all ghosts are gone or ctx is over.
func (s *sweeper) close(ctx context.Context) error {
	defer s.end()
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ghosts) > 0 {
		return fmt.Errorf("%w: %d requests without an answer: %w", driver.ErrUnknown, len(s.ghosts), ctx.Err())
	}
	return nil
}
