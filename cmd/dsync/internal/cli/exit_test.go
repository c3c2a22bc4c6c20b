package cli

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
)

// TestStatusesAreInTheDocs compares the table of docs/command.md with the table
// in the code.
func TestStatusesAreInTheDocs(t *testing.T) {
	_, table, _ := strings.Cut(clitest.Page(t, "docs/command.md"), "| of | status | meaning |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var want strings.Builder
	for _, row := range statuses {
		of := "the others"
		if row.ofRun {
			of = "`dsync run`"
		}
		fmt.Fprintf(&want, "| %s | %s | %s |\n", of, row.status, row.meaning)
	}
	if table+"\n" != want.String() {
		t.Errorf("docs/command.md has the statuses\n%s, want\n%s", table, want.String())
	}
}

// TestStatusesAreThoseOfTheCode compares the table with the constants.
func TestStatusesAreThoseOfTheCode(t *testing.T) {
	file, err := parser.ParseFile(gotoken.NewFileSet(), "exit.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is && len(spec.Values) == 1 && strings.HasPrefix(spec.Names[0].Name, "Exit") {
			value := spec.Values[0].(*ast.BasicLit).Value
			if spec.Names[0].Name == "ExitBySignal" {
				value += "+n"
			}
			got = append(got, value)
		}
		return true
	})
	for _, row := range statuses {
		if row.status != "0-255" { // statuses of other programs
			want = append(want, row.status)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the constants are %q, and the table has %q", got, want)
	}
}
