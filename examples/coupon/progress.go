package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/examples/coupon/shop"
)

// The delay before a progress bar is first drawn, and the interval between
// updates.
const (
	quietStart = time.Second
	drawEvery  = 50 * time.Millisecond
)

// newProgress returns a function that counts a buyer, and a function to call at
// the end. In between, it shows a progress bar on w if w is a terminal, unless
// the run is fast.
func newProgress(w io.Writer, run string, buyers int) (served func(shop.Tally), stop func()) {
	file, ok := w.(*os.File)
	if !ok || !isTerminal(file) {
		return func(shop.Tally) {}, func() {}
	}
	b := &bar{w: file, label: run, total: buyers, next: time.Now().Add(quietStart)}
	return func(shop.Tally) { b.add() }, b.clear
}

// isTerminal also accepts other character devices, such as /dev/null, which is
// harmless.
func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// bar is a line that shows the progress of a run.
type bar struct {
	w     io.Writer
	label string
	total int

	mu    sync.Mutex
	done  int
	next  time.Time // time of the next update
	width int       // length of the drawn line
}

func (b *bar) add() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	if now := time.Now(); now.After(b.next) {
		b.next = now.Add(drawEvery)
		const width = 30
		full := width * b.done / b.total
		line := fmt.Sprintf("%s |%s%s| (%d/%d)", b.label, strings.Repeat("#", full), strings.Repeat(" ", width-full), b.done, b.total)
		b.width = len(line)
		fmt.Fprint(b.w, "\r"+line)
	}
}

// clear removes the bar from the terminal.
func (b *bar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.width > 0 {
		fmt.Fprint(b.w, "\r"+strings.Repeat(" ", b.width)+"\r")
	}
}
