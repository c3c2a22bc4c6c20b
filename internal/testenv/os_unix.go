//go:build unix

package testenv

import (
	"io/fs"
	"os"
	"syscall"
)

const sigStop, sigCont = syscall.SIGSTOP, syscall.SIGCONT

func signalProcess(pid int, sig syscall.Signal) error { return syscall.Kill(pid, sig) }

func lockFile(f *os.File, wait bool) error {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	return syscall.Flock(int(f.Fd()), how)
}

func ownerOf(info fs.FileInfo) (uid int) { return int(info.Sys().(*syscall.Stat_t).Uid) }
