package dsync_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/go-dsync/dsync"

// layout lists the allowed imports of each package, besides the standard
// library and the packages below its own directory. A package belongs to the
// entry with the longest directory that contains it. "./" stands for this
// module, "/..." for a package and all packages below it. Package testing and
// the packages below it count as the standard library only where they are
// named. Test files are exempt.
var layout = []struct {
	dir string
	may []string
}{
	{".", []string{
		"./driver",
		"./internal/alarm",
		"./internal/clock",
		"./internal/parallel",
		"./internal/telemetry",
		"go.opentelemetry.io/otel/metric",
		"go.opentelemetry.io/otel/trace",
	}},
	{"driver", nil},
	{"driver/cas", []string{"./driver", "./driver/move", "./internal/cleaner", "./internal/lifecycle", "./internal/parallel"}},
	{"driver/move", []string{"./driver"}},

	// Every package of internal. None imports a driver, except telemetrytest,
	// which is only for tests.
	{"internal/lifecycle", []string{"./driver"}},
	{"internal/cleaner", []string{"./internal/lifecycle"}},
	{"internal/session", []string{"./driver", "./internal/lifecycle"}},
	{"internal/linked", nil},
	{"internal/parallel", nil},
	{"internal/clock", nil},
	{"internal/alarm", []string{"./internal/clock", "./internal/linked"}},
	{"internal/redisdial", []string{"./driver", "./internal/tlsurl", "github.com/redis/rueidis"}},
	{"internal/redisdriver", []string{"./driver", "./internal/lifecycle", "./internal/linked", "./internal/redisdial", "github.com/redis/rueidis"}},
	{"internal/redistopic", []string{"./internal/lifecycle", "github.com/redis/rueidis/..."}},
	{"internal/tlsurl", []string{"./driver"}},
	{"internal/telemetry", []string{
		"./driver",
		"go.opentelemetry.io/otel",
		"go.opentelemetry.io/otel/attribute",
		"go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/metric/...",
		"go.opentelemetry.io/otel/trace/...",
	}},
	{"internal/testenv", []string{"./conformance/wire", "testing"}},
	{"internal/drivertest", []string{"./", "./driver/...", "./conformance/wire", "./internal/testenv", "testing"}},
	{"internal/capacity", nil},
	{"internal/guardtest", nil},
	{"internal/sqltest", nil},
	{"internal/telemetrytest", []string{"./", "./driver", "./drivers/memory", "./internal/testenv", "testing/...", "go.opentelemetry.io/otel/..."}},
	{"guard", nil},
	{"cron", []string{"./"}},
	{"httplock", []string{"./", "./guard"}},
	{"conformance", []string{"./", "./driver/...", "testing/..."}},
	{"conformance/history", []string{"./", "./driver"}},
	{"conformance/wire", nil},
	{"dsynctest", []string{"./", "./drivers/memory", "testing"}},

	// Each driver, with its client library.
	{"drivers/memory", []string{"./driver/..."}},
	{"drivers/migrate", []string{"./driver/..."}},
	{"drivers/redisson", []string{"./driver/...", "./internal/...", "github.com/redis/rueidis/..."}},
	{"drivers/redlock", []string{"./driver/...", "./internal/...", "github.com/redis/rueidis/..."}},
	{"drivers/etcd", []string{"./driver/...", "./internal/...", "go.etcd.io/etcd/...", "google.golang.org/grpc/...", "go.uber.org/zap/..."}},
	{"drivers/zk", []string{"./driver/...", "./internal/...", "github.com/go-zookeeper/zk"}},
	{"drivers/pglock", []string{"./driver/...", "./internal/...", "github.com/jackc/pgx/v5/..."}},

	// Stores of driver/cas.
	{"drivers/sqllock", []string{"./driver/..."}},
	{"contrib/asynqlock", []string{"./", "github.com/hibiken/asynq"}},
	{"contrib/riverlock", []string{"./", "github.com/riverqueue/river", "github.com/riverqueue/river/rivertype"}},
	{"contrib/cronlock", []string{"./", "github.com/go-co-op/gocron/v2", "github.com/robfig/cron/v3"}},
	{"contrib/consullock", []string{"./driver/...", "github.com/hashicorp/consul/api"}},
	{"contrib/natslock", []string{"./driver/...", "github.com/nats-io/nats.go/..."}},

	{"cmd", []string{
		"./", "./driver/...", "./drivers/...", "./internal/parallel", "./internal/redisdial", "./internal/tlsurl",
		"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/schollz/progressbar/v3", "golang.org/x/sys/unix", "golang.org/x/term",
		"github.com/redis/rueidis", "go.etcd.io/etcd/...", "go.uber.org/zap", "github.com/go-zookeeper/zk", "github.com/jackc/pgx/v5/pgconn",
		"github.com/jackc/pgx/v5/stdlib", "github.com/go-sql-driver/mysql",
	}},
	{"cmd/dsync/internal/clitest", []string{"./", "./internal/testenv", "testing", "github.com/spf13/cobra"}},
	{"examples", []string{"./", "./driver", "./driver/cas", "./drivers/...", "./guard"}},
	{"examples/leader", []string{"./", "./drivers/...", "./guard", "./examples/servers"}},
	{"examples/migration", []string{"./", "./drivers/...", "./examples/coupon/shop", "./examples/servers"}},
	{"examples/observability", []string{"./", "./drivers/...", "go.opentelemetry.io/otel/..."}},
}

// rootModules are the modules with packages that a user of package dsync
// compiles.
var rootModules = []string{
	module,
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/trace",

	// The modules that these depend on.
	"github.com/go-logr/logr",
	"github.com/go-logr/stdr",
}

// nested lists the separate modules below the root, whose import paths begin
// with the root's, grouped by their dependencies.
var nested = []string{"cmd/dsync", "contrib/asynqlock", "contrib/consullock", "contrib/cronlock", "contrib/natslock", "contrib/riverlock", "examples/observability", "internal/guardtest", "internal/sqltest", "internal/telemetrytest"}

// goPackage is the output of `go list` for a package.
type goPackage struct {
	ImportPath string
	Standard   bool
	Module     *struct{ Path string }
	Imports    []string
	Deps       []string
}

func TestLayoutImports(t *testing.T) {
	ours := goList(t, "./...")
	for _, dir := range nested {
		ours = append(ours, goListIn(t, dir, "./...")...)
	}
	for _, p := range ours {
		may, ok := allowed(p.ImportPath)
		if !ok {
			t.Errorf("%s has no place in the table layout of layout_test.go: add its directory and what it may import there, "+
				"in the case of a driver its client library", p.ImportPath)
			continue
		}
		for _, path := range p.Imports {
			if !may(path) {
				t.Errorf("%s imports %s, which the table layout of layout_test.go does not allow", p.ImportPath, path)
			}
		}
	}
	if !slices.ContainsFunc(ours, func(p *goPackage) bool { return p.ImportPath == module+"/driver" }) {
		t.Errorf("go list knows %d packages, want the driver package among them", len(ours))
	}
}

// TestLayoutDependencies checks indirect dependencies.
func TestLayoutDependencies(t *testing.T) {
	modules := make(map[string]bool)
	for _, p := range goList(t, "-deps", ".") {
		if p.Module != nil {
			modules[p.Module.Path] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(modules)), slices.Sorted(slices.Values(rootModules)); !slices.Equal(got, want) {
		t.Errorf("modules that a user of package dsync compiles: got %q, want %q: each additional module needs a reason", got, want)
	}
	for _, p := range goList(t, "./...") {
		dir, _ := relative(p.ImportPath)
		switch top, _, _ := strings.Cut(dir, "/"); top {
		case ".", "driver", "drivers", "cmd":
			if slices.Contains(p.Deps, "testing") {
				t.Errorf("%s depends on package testing", p.ImportPath)
			}
		}
	}
}

func TestLayoutTable(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     bool
	}{
		{".", "context", true},
		{".", "testing", false},
		{".", "testing/synctest", false},
		{".", module + "/driver", true},
		{".", module + "/drivers/memory", false},
		{".", module + "/conformance", false},
		{".", "go.opentelemetry.io/otel", false},
		{".", "go.opentelemetry.io/otel/trace", true},
		{"internal/telemetry", "go.opentelemetry.io/otel", true},
		{"internal/telemetry", module, false},
		{".", "go.opentelemetry.io/otel/trace/noop", false},
		{"internal/telemetry", "go.opentelemetry.io/otel/trace/noop", true},
		{".", "go.opentelemetry.io/otel/sdk/trace", false},
		{".", "go.opentelemetry.io/otel/metrics", false},
		{"driver", "net/url", true},
		{"driver", module, false},
		{".", module + "/driver/move", false},
		{"driver/move", module + "/drivers/migrate", false},
		{"drivers/redisson", module, false},
		{"drivers/redisson", module + "/driver", true},
		{"drivers/redisson", module + "/driver/move", true},
		{"drivers/redisson", module + "/internal/keys", true},
		{"drivers/redisson", module + "/internal/testenv", false},
		{"drivers/redisson", module + "/drivers/redisson/script", true},
		{"drivers/redisson/script", module + "/drivers/redisson", true},
		{"drivers/redisson", module + "/drivers/memory", false},
		{"drivers/redisson", "github.com/redis/rueidis", true},
		{"drivers/redisson", "github.com/jackc/pgx/v5", false},
		{"drivers/redisson", "go.opentelemetry.io/otel", false},
		{"drivers/redisson", "testing", false},
		{"drivers/memory", module + "/internal/keys", false},
		{"conformance", module, true},
		{"conformance", "testing", true},
		{"conformance", module + "/conformance/wire", true},
		{"conformance", module + "/drivers/memory", false},
		{"conformance/history", "testing", false},
		{"conformance/history", module + "/conformance", false},
		{"conformance/wire", module + "/driver", false},
		{"conformance", module + "/internal/testenv", false},
		{"internal/testenv", "testing", true},
		{"internal/testenv", module + "/driver", false},
		{"internal/testenv", module + "/conformance", false},
		{"internal/testenv", module + "/conformance/wire", true},
		{"examples/coupon", module + "/drivers/memory", true},
		{"examples/coupon", module + "/internal/testenv", false},
	} {
		may, ok := allowed(strings.TrimSuffix(module+"/"+test.from, "/."))
		if !ok {
			t.Errorf("%s has no place in the table", test.from)
		} else if got := may(test.to); got != test.want {
			t.Errorf("%s imports %s: got %t, want %t", test.from, test.to, got, test.want)
		}
	}
	for _, dir := range []string{"drivers/unknown", "drivers", "unknown", "conformances", "internal/unknown", "internal"} {
		if _, ok := allowed(module + "/" + dir); ok {
			t.Errorf("%s has a place in the table, want none", dir)
		}
	}
}

// allowed returns the allowed imports of a package of this module.
func allowed(path string) (may func(string) bool, ok bool) {
	dir, _ := relative(path)
	place := -1
	for i, entry := range layout {
		below := strings.HasPrefix(dir, entry.dir+"/") && entry.dir != "."
		if (dir == entry.dir || below) && (place < 0 || len(entry.dir) > len(layout[place].dir)) {
			place = i
		}
	}
	if place < 0 {
		return nil, false
	}
	entry := layout[place]
	return func(target string) bool {
		if target == module+"/internal/testenv" {
			return slices.Contains(entry.may, "./internal/testenv") // otherwise it is for test files, which are not checked here
		}
		for _, pattern := range entry.may {
			if matches(pattern, target) {
				return true
			}
		}
		if matches("testing/...", target) {
			return false
		}
		if _, local := relative(target); local {
			return entry.dir != "." && matches("./"+entry.dir+"/...", target)
		}
		domain, _, _ := strings.Cut(target, "/")
		return !strings.Contains(domain, ".") // the standard library
	}, true
}

// relative returns the directory of a package ("." for the root) and reports
// whether the package belongs to this module.
func relative(path string) (dir string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func matches(pattern, path string) bool {
	if dir, ok := strings.CutPrefix(pattern, "./"); ok {
		pattern = strings.TrimSuffix(module+"/"+dir, "/")
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == tree || strings.HasPrefix(path, tree+"/")
	}
	return path == pattern
}

// goList lists packages of the root module as users get it: only its own go.mod
// determines the versions.
func goList(t *testing.T, args ...string) []*goPackage {
	t.Helper()
	return goListIn(t, ".", args...)
}

// goListIn lists packages of the module in a directory. Modules below the root
// find it by the workspace.
func goListIn(t *testing.T, dir string, args ...string) []*goPackage {
	t.Helper()
	watchSources(t)
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Module,Imports,Deps"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=")
	if dir == "." {
		cmd.Env = append(os.Environ(), "GOWORK=off")
	}
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	var packages []*goPackage
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		if err := in.Decode(p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// watchSources reads all directories of the module, so that `go test` does not
// use its cache when a file has changed that only `go list` reads.
func watchSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
