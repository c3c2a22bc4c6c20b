package testenv

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
)

// process is a child of the test binary. It is reaped when it ends, and does not outlive the test binary.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process is gone
	err    error         // why it ended; to be read after done
	frozen bool          // guarded by the owner of the process
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	EndWithUs(cmd)
	started := make(chan error)
	go func() { // ends with the process
		// The kernel ties the child's life to the thread that forked it, not to our process: so that thread stays
		// here for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process and waits until it is reaped.
func (p *process) kill() {
	p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}

func (p *process) freeze() error {
	if p.frozen {
		return nil
	}
	if err := p.signal(sigStop); err != nil {
		return err
	}
	p.frozen = true
	return waitStopped(p.cmd.Process.Pid)
}

func (p *process) thaw() error {
	if !p.frozen {
		return nil
	}
	p.frozen = false
	return p.signal(sigCont)
}

func (p *process) signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return errors.New("the process is not running")
	}
	return err
}
