//go:build unix

package conformance

import "syscall"

// stop stops the process, with all its threads, until cont is called.
func (p *worker) stop() {
	p.env.events.add(p.label, "stopped")
	p.env.must(p.process.Signal(syscall.SIGSTOP))
}

// cont lets the process continue, if it still exists.
func (p *worker) cont() {
	p.env.events.add(p.label, "goes on")
	_ = p.process.Signal(syscall.SIGCONT)
}
