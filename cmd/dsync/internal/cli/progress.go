package cli

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress shows a progress bar on a terminal and nothing elsewhere.
type Progress struct{ bar *progressbar.ProgressBar }

func NewProgress(w io.Writer, what string, total int) *Progress {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return &Progress{}
	}
	return &Progress{progressbar.NewOptions(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionClearOnFinish())}
}

func (p *Progress) Add() {
	if p.bar != nil {
		_ = p.bar.Add(1)
	}
}

func (p *Progress) Stop() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
