//go:build !unix

package conformance

func (p *worker) stop() { p.env.need(false, "signals that stop a process") }
func (p *worker) cont() {}
