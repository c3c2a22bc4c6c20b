package drivertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Recipe returns the first block of code in docs/security.md that comes after a text, so that tests run with the very rights that are
// recommended there. It is for the packages of drivers.
func Recipe(tb testing.TB, after string) string {
	tb.Helper()
	_, rest, found := strings.Cut(security(tb), after)
	_, block, begins := strings.Cut(rest, "\n```")
	_, block, _ = strings.Cut(block, "\n") // the language
	block, _, ends := strings.Cut(block, "\n```")
	if !found || !begins || !ends {
		tb.Fatalf("docs/security.md has no block of code after %q", after)
	}
	return block
}

// RecipeRow returns the words in the second cell of the row of a table in docs/security.md whose first cell is given.
func RecipeRow(tb testing.TB, first string) []string {
	tb.Helper()
	_, row, found := strings.Cut(security(tb), "\n| "+first+" | `")
	words, _, ends := strings.Cut(row, "` |")
	if !found || !ends {
		tb.Fatalf("docs/security.md has no row that begins with %q", first)
	}
	return strings.Fields(words)
}

func security(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}
