package bench

import (
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far a run is, if the standard error is a terminal. Its methods may be called concurrently.
type bar struct {
	mu  sync.Mutex
	bar *progressbar.ProgressBar // nil: nobody looks
}

func newBar(steps int) *bar {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return new(bar)
	}
	return &bar{bar: progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription("measuring"),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)}
}

func (b *bar) step() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		_ = b.bar.Add(1) // that nobody sees it is no reason to stop
	}
}

func (b *bar) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		_ = b.bar.Finish()
	}
}
