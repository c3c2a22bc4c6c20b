package dsync_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The files, other than the driver's own files, in which its opener reads URL
// parameters.
var asksBeside = map[string][]string{
	"memory": nil, "migrate": nil, "pglock": nil,
	"etcd": {"internal/tlsurl"}, "zk": {"internal/tlsurl"},
	"redisson": {"internal/redisdial", "internal/tlsurl"}, "redlock": {"internal/redisdial", "internal/tlsurl"},
}

// pageOf has the pages in docs/backends whose name differs from the driver's.
var pageOf = map[string]string{"redisson": "redis", "zk": "zookeeper", "pglock": "postgres"}

// TestParameters compares the parameters that each driver's opener reads with
// the section Parameters of the package comment and of the page in
// docs/backends.
func TestParameters(t *testing.T) {
	for name, beside := range asksBeside {
		t.Run(name, func(t *testing.T) {
			asked, documented := map[string]bool{}, map[string]bool{}
			for _, dir := range append([]string{"drivers/" + name}, beside...) {
				for _, file := range parse(t, dir) {
					askedIn(file, asked)
					if file.Doc != nil && dir == "drivers/"+name {
						documentedIn(file.Doc.Text(), documented)
					}
				}
			}
			delete(asked, "ttl") // of a part of migrate, which may lack it
			if got, want := slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(asked)); !slices.Equal(got, want) {
				t.Errorf("the package comment has the parameters %q, and the opener reads %q", got, want)
			}
			if name == "migrate" {
				return // docs/migration.md
			}
			page := "docs/backends/" + cmp.Or(pageOf[name], name) + ".md"
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			_, section, _ := strings.Cut(string(text), "\n## Parameters\n")
			section, _, _ = strings.Cut(section, "\n## ")
			listed := map[string]bool{}
			for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\| ").FindAllStringSubmatch(section, -1) {
				for _, m := range regexp.MustCompile("`([a-z_]+)=").FindAllStringSubmatch(row[1], -1) {
					listed[m[1]] = true
				}
			}
			if got, want := slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(asked)); !slices.Equal(got, want) {
				t.Errorf("%s has the parameters %q, and the opener reads %q", page, got, want)
			}
		})
	}
}

func parse(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("files of %s: %q, %v", dir, paths, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// askedIn finds the calls that read a parameter of driver.URL.
func askedIn(file *ast.File, names map[string]bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := method.X.(*ast.Ident); ok && x.Name == "u" && method.Sel.Name == "Password" {
			names["password_file"] = true
		}
		if len(call.Args) == 0 || !slices.Contains([]string{"Has", "Param", "Choice", "Bool", "Int", "Duration"}, method.Sel.Name) {
			return true
		}
		if literal, ok := call.Args[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if name, err := strconv.Unquote(literal.Value); err == nil {
				names[name] = true
			}
		}
		return true
	})
}

// documentedIn reads the indented lines of the section Parameters. The names,
// each with a =, come before two spaces.
func documentedIn(text string, names map[string]bool) {
	_, section, _ := strings.Cut(text, "# Parameters\n")
	section, _, _ = strings.Cut(section, "\n# ")
	for line := range strings.Lines(section) {
		if line, ok := strings.CutPrefix(line, "\t"); ok {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
			for _, m := range regexp.MustCompile(`(?:^|, )([a-z_]+)=`).FindAllStringSubmatch(line, -1) {
				names[m[1]] = true
			}
		}
	}
}
