package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"
)

// EndWithUs makes the kernel kill the child when the thread that forked it
// ends.
func EndWithUs(cmd *exec.Cmd) { attr(cmd).Pdeathsig = syscall.SIGKILL }

// ownNetwork gives the child its own network namespace.
func ownNetwork(cmd *exec.Cmd) { attr(cmd).Cloneflags |= syscall.CLONE_NEWNET }

func attr(cmd *exec.Cmd) *syscall.SysProcAttr {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	return cmd.SysProcAttr
}

// waitStopped returns when all threads of a child that received SIGSTOP have
// stopped, or when the child is gone.
func waitStopped(pid int) error {
	const idPID = 1
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idPID, uintptr(pid), 0, syscall.WSTOPPED, 0, 0)
		switch errno {
		case 0, syscall.ECHILD:
			return nil
		case syscall.EINTR:
		default:
			return errno
		}
	}
}

// inMemory reports whether a directory is on a file system without a disk.
func inMemory(dir string) bool {
	const tmpfs = 0x01021994
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Type == tmpfs
}

// freePort returns a loopback port that belongs to the test until it ends. It
// binds a socket without listening, so that the kernel does not give the port
// to another process, even while the server is down. Servers can still use the
// port because they request it by its number and allow the reuse of addresses.
func freePort(tb testing.TB) int {
	tb.Helper()
	port, err := bind(tb, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// bind reserves a loopback port until the end of the test. Port 0 means any
// port.
func bind(tb testing.TB, port int) (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	tb.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return addr.(*syscall.SockaddrInet4).Port, nil
}

// Terminal starts a command in its own session, with a pseudo-terminal as
// standard input and standard error. It returns the user's side of the
// terminal. Reading fails when the command and its children have ended.
func Terminal(tb testing.TB, cmd *exec.Cmd) *os.File {
	tb.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { user.Close() })
	var locked, number int32
	for request, n := range map[uintptr]*int32{syscall.TIOCSPTLCK: &locked, syscall.TIOCGPTN: &number} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, user.Fd(), request, uintptr(unsafe.Pointer(n))); errno != 0 {
			tb.Fatal(errno)
		}
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer tty.Close()
	cmd.Stdin, cmd.Stderr = tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	return user
}
