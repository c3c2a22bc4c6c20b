package bench

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// guard counts how often a lock was held twice, and how often it was granted. It is memory that processes share: a cell that is 1 while somebody
// holds the lock, and the counts.
type guard struct {
	memory   []byte
	cell     *atomic.Int64
	overlaps *atomic.Int64
	grants   *atomic.Int64
}

const guardSize = 24

// newGuard uses a file, which it makes if there is none.
func newGuard(path string) (*guard, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(guardSize); err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, guardSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &guard{
		memory:   memory,
		cell:     (*atomic.Int64)(unsafe.Pointer(&memory[0])),
		overlaps: (*atomic.Int64)(unsafe.Pointer(&memory[8])),
		grants:   (*atomic.Int64)(unsafe.Pointer(&memory[16])),
	}, nil
}

func (g *guard) close() error { return syscall.Munmap(g.memory) }

// enter is called by who was just granted the lock, and leave by the same before the release.
func (g *guard) enter() {
	if g.cell.Add(1) != 1 {
		g.overlaps.Add(1)
	}
}

func (g *guard) leave() { g.cell.Add(-1) }

var errOverlap = errors.New("two held the lock at once")

// err returns errOverlap if anybody saw somebody else, and forgets it.
func (g *guard) err() error {
	if g.overlaps.Swap(0) > 0 {
		return errOverlap
	}
	return nil
}
