package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/go-dsync/dsync/examples/coupon/shop"
)

// newProgress returns a function that counts a buyer, and one to be called at the end. In between there is a progress bar on w from
// one second on, if w is a terminal.
func newProgress(w io.Writer, run string, buyers int) (served func(shop.Tally), stop func()) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func(shop.Tally) {}, func() {}
	}
	bar := progressbar.NewOptions(buyers,
		progressbar.OptionSetWriter(&quietStart{w, time.Now().Add(time.Second)}),
		progressbar.OptionSetDescription(run),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionClearOnFinish())
	return func(shop.Tally) { bar.Add(1) }, func() { bar.Clear() }
}

// quietStart drops what is written before the end of the quiet time.
type quietStart struct {
	io.Writer
	end time.Time
}

func (q *quietStart) Write(text []byte) (int, error) {
	if time.Now().Before(q.end) {
		return len(text), nil
	}
	return q.Writer.Write(text)
}
