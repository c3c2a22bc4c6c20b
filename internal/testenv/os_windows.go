package testenv

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Tests that need servers compile on Windows, but fail there.

const sigStop, sigCont = syscall.Signal(19), syscall.Signal(18)

func signalProcess(int, syscall.Signal) error { return errors.ErrUnsupported }

func lockFile(*os.File, bool) error { return errors.ErrUnsupported }

func ownerOf(fs.FileInfo) (uid int) { return -1 }
