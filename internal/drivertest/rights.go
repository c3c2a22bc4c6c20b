package drivertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Recipe returns the first code block in docs/backends after a text, so that
// tests run with the recommended rights. It is for the packages of drivers.
func Recipe(tb testing.TB, after string) string {
	tb.Helper()
	_, rest, found := strings.Cut(backends(tb), after)
	_, block, begins := strings.Cut(rest, "\n```")
	_, block, _ = strings.Cut(block, "\n") // cuts off the language
	block, _, ends := strings.Cut(block, "\n```")
	if !found || !begins || !ends {
		tb.Fatalf("docs/backends has no block of code after %q", after)
	}
	return block
}

// RecipeRow returns the words in the second cell of the table row in
// docs/backends with the given first cell.
func RecipeRow(tb testing.TB, first string) []string {
	tb.Helper()
	_, row, found := strings.Cut(backends(tb), "\n| "+first+" | `")
	words, _, ends := strings.Cut(row, "` |")
	if !found || !ends {
		tb.Fatalf("docs/backends has no row that begins with %q", first)
	}
	return strings.Fields(words)
}

// backends returns the text of all pages in docs/backends.
func backends(tb testing.TB) string {
	tb.Helper()
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "backends", "*.md"))
	if err != nil || len(pages) == 0 {
		tb.Fatalf("pages of backends: %q, %v", pages, err)
	}
	var all strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			tb.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
