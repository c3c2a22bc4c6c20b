package dsync_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The requirements of a program that uses package dsync with memory, namely the
// API of OpenTelemetry and its dependencies, and the additional requirements of
// each other driver. All versions are the oldest that dsync works with.
// docs/design.md gives the reason for each version.
var (
	requiredByAll = []string{
		"github.com/go-logr/logr v1.4.1",
		"github.com/go-logr/stdr v1.2.2",
		"go.opentelemetry.io/otel v1.22.0",
		"go.opentelemetry.io/otel/metric v1.22.0",
		"go.opentelemetry.io/otel/trace v1.22.0",
	}
	requiredBy = map[string][]string{
		"memory":   nil,
		"migrate":  nil,
		"sqllock":  nil,
		"redisson": {"github.com/redis/rueidis v1.0.79", "golang.org/x/sys v0.47.0"},
		"redlock":  {"github.com/redis/rueidis v1.0.79", "golang.org/x/sys v0.47.0"},
		"zk":       {"github.com/go-zookeeper/zk v1.0.4"},
		"pglock": {
			"github.com/jackc/pgpassfile v1.0.0",
			"github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761",
			"github.com/jackc/pgx/v5 v5.9.2",
			"golang.org/x/text v0.41.0",
		},
		"etcd": {
			"github.com/coreos/go-semver v0.3.0",
			"github.com/coreos/go-systemd/v22 v22.3.2",
			"github.com/gogo/protobuf v1.3.2",
			"github.com/golang/protobuf v1.5.4",
			"go.etcd.io/etcd/api/v3 v3.5.13",
			"go.etcd.io/etcd/client/pkg/v3 v3.5.13",
			"go.etcd.io/etcd/client/v3 v3.5.13",
			"go.uber.org/atomic v1.7.0",
			"go.uber.org/multierr v1.6.0",
			"go.uber.org/zap v1.17.0",
			"golang.org/x/net v0.57.0",
			"golang.org/x/sys v0.47.0",
			"golang.org/x/text v0.41.0",
			"google.golang.org/genproto v0.0.0-20230822172742-b8732ec3820d",
			"google.golang.org/genproto/googleapis/api v0.0.0-20230822172742-b8732ec3820d",
			"google.golang.org/genproto/googleapis/rpc v0.0.0-20230822172742-b8732ec3820d",
			"google.golang.org/grpc v1.59.0",
			"google.golang.org/protobuf v1.33.0",
		},
	}
)

// program is a program in its own module, outside of the repository.
type program struct {
	t   *testing.T
	dir string
	env []string
}

func newProgram(t *testing.T, requires ...string) *program {
	t.Helper()
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t, t.TempDir(), append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")}
	p.write("go.mod", "module example.com/program\n\ngo 1.25.0\n\nrequire (\n"+strings.Join(requires, "\n")+"\n)\n\n"+
		"replace "+module+" => "+root+"\n")
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	p.write("go.sum", string(sums)) // so that known modules are not looked up
	return p
}

func (p *program) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// imports makes packages the only imports of the program and returns the
// versions of all modules that are then in go.mod.
func (p *program) imports(packages ...string) map[string]string {
	p.t.Helper()
	var text strings.Builder
	text.WriteString("package main\n\nimport (\n")
	for _, path := range packages {
		fmt.Fprintf(&text, "\t_ %q\n", path)
	}
	text.WriteString(")\n\nfunc main() {}\n")
	p.write("main.go", text.String())
	p.command("mod", "tidy")
	versions := map[string]string{}
	for line := range strings.Lines(p.command("list", "-m", "-f", "{{if not .Main}}{{.Path}} {{.Version}}{{end}}", "all")) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[path] = version
		}
	}
	return versions
}

// unreachable matches the message of the go command when it could not fetch a
// module.
var unreachable = regexp.MustCompile(`dial tcp|module lookup disabled|i/o timeout|TLS handshake|connection re|unexpected EOF|: 50\d `)

func (p *program) command(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "go", args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && unreachable.MatchString(stderr.String()) && os.Getenv("CI") == "" {
		p.t.Skipf("%s is UNTESTED: modules cannot be fetched: %s", p.t.Name(), stderr.String())
	} else if err != nil {
		p.t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// required returns the lines of go.mod, except the module under test.
func (p *program) required() (lines []string) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "go.mod"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+ v\S+)(?: // indirect)?$`).FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(m[1], module+" ") {
			lines = append(lines, m[1])
		}
	}
	slices.Sort(lines)
	return lines
}

// TestWhatADriverRequires adds each driver separately to a program that has
// nothing else.
func TestWhatADriverRequires(t *testing.T) {
	watchSources(t)
	for name, own := range requiredBy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t)
			p.imports(module, module+"/drivers/"+name)
			want := slices.Sorted(slices.Values(slices.Concat(requiredByAll, own)))
			if got := p.required(); !slices.Equal(got, want) {
				t.Errorf("go.mod of a program with this driver requires\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestWhatADriverMoves adds a driver to a program that has older versions of
// the clients of other backends and of more modules. For any driver, minimal
// version selection upgrades the modules in dsync's go.mod and nothing else.
func TestWhatADriverMoves(t *testing.T) {
	watchSources(t)
	has := map[string]string{
		"github.com/spf13/cobra":              "v1.8.0",
		"github.com/prometheus/client_golang": "v1.20.0",
		"go.uber.org/zap":                     "v1.26.0",
		"github.com/jackc/pgx/v5":             "v5.5.5",
		"google.golang.org/grpc":              "v1.58.3",
	}
	moved := map[string]string{"github.com/jackc/pgx/v5": "v5.9.2", "google.golang.org/grpc": "v1.59.0"}
	var requires []string
	for path, version := range has {
		requires = append(requires, path+" "+version)
	}
	own := []string{"github.com/spf13/cobra", "github.com/prometheus/client_golang/prometheus", "go.uber.org/zap",
		"github.com/jackc/pgx/v5", "google.golang.org/grpc"}
	p := newProgram(t, requires...)
	check := func(got, want map[string]string) {
		for path, version := range want {
			if got[path] != version {
				t.Errorf("%s is at %s, want %s", path, got[path], version)
			}
		}
	}
	check(p.imports(own...), has)
	want := maps.Clone(has)
	maps.Copy(want, moved)
	check(p.imports(append(own, module, module+"/drivers/redisson")...), want)
}
