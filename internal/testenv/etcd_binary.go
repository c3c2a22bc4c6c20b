package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// etcdModule is the directory, below the root of this module, of the module that names the version of the current etcd.
const etcdModule = "test/etcdserver"

// buildGuard bounds the build of a server from source. It is no expectation of how long that takes.
const buildGuard = 10 * time.Minute

// built has the outcome of building each binary in this process.
var built sync.Map // package path to func() (string, error)

// etcdBinary returns the path of the current etcd server, and etcdctlBinary that of the command line client that belongs to it.
// They are built from the Go module once a version, into the user's cache directory. Where that cannot be done, the test fails if CI
// is set, and is skipped otherwise.
func etcdBinary(tb testing.TB) string {
	tb.Helper()
	return builtBinary(tb, "go.etcd.io/etcd/server/v3", "etcd")
}

func etcdctlBinary(tb testing.TB) string {
	tb.Helper()
	return builtBinary(tb, "go.etcd.io/etcd/etcdctl/v3", "etcdctl")
}

func builtBinary(tb testing.TB, pkg, name string) string {
	tb.Helper()
	build, _ := built.LoadOrStore(pkg, sync.OnceValues(func() (string, error) { return buildBinary(pkg, name) }))
	path, err := build.(func() (string, error))()
	if err == nil {
		return path
	}
	const text = "%s is UNTESTED: %s cannot be built: %v"
	if os.Getenv("CI") != "" {
		tb.Fatalf(text, tb.Name(), name, err)
	}
	tb.Skipf(text, tb.Name(), name, err)
	return ""
}

func buildBinary(pkg, name string) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "..", "..", etcdModule)
	ctx, cancel := context.WithTimeout(context.Background(), buildGuard)
	defer cancel()
	version, err := goCommand(ctx, dir, "list", "-m", "-f", "{{.Version}}", pkg)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "dsync-test", name+"-"+version+"-"+runtime.GOOS+"-"+runtime.GOARCH)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(path), "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	if _, err := goCommand(ctx, dir, "build", "-o", filepath.Join(scratch, name), pkg); err != nil {
		return "", err
	}
	return path, os.Rename(filepath.Join(scratch, name), path) // whoever builds at the same time gets the same
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off") // the module has versions of its own
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
