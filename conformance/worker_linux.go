package conformance

import "syscall"

func init() { workerAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
