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

// When a progress bar is first drawn, and how often it is drawn anew.
const (
	quietStart = time.Second
	drawEvery  = 50 * time.Millisecond
)

// newProgress returns a function that counts a buyer, and one to be called at
// the end. In between there is a progress bar on w, unless the run is fast, if
// w is a terminal.
func newProgress(w io.Writer, run string, buyers int) (served func(shop.Tally), stop func()) {
	file, ok := w.(*os.File)
	if !ok || !isTerminal(file) {
		return func(shop.Tally) {}, func() {}
	}
	b := &bar{w: file, label: run, total: buyers, next: time.Now().Add(quietStart)}
	return func(shop.Tally) { b.add() }, b.clear
}

// isTerminal also takes other devices with characters for one, such as
// /dev/null, which does no harm.
func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// bar is a line that says how far a run is.
type bar struct {
	w     io.Writer
	label string
	total int

	mu    sync.Mutex
	done  int
	next  time.Time // when it is drawn next
	width int       // of what is drawn
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

// clear leaves nothing of the bar on the terminal.
func (b *bar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.width > 0 {
		fmt.Fprint(b.w, "\r"+strings.Repeat(" ", b.width)+"\r")
	}
}
