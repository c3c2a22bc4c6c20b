package dsync_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLayoutIsInDesign compares the table layout with the table of places in
// docs/design.md: the places, and their allowed imports from this module.
func TestLayoutIsInDesign(t *testing.T) {
	var places []string
	for _, row := range tableBehind(t, "| place | what it is | may import |\n|---|---|---|\n") {
		if len(row) != 3 {
			t.Fatalf("the row %q of docs/design.md has %d cells, want 3", row, len(row))
		}
		for _, place := range placesOf(row[0]) {
			places = append(places, place)
			if strings.HasPrefix(place, "test/") {
				continue // separate modules, without an entry
			}
			i := entryOf(place)
			if i < 0 {
				t.Errorf("docs/design.md has the place %s, which is not in the table layout", place)
				continue
			}
			if want, got := ownImports(layout[i].may), localNames(row[2]); !slices.Equal(got, want) {
				t.Errorf("%s may import %q by docs/design.md, and %q by the table layout", place, got, want)
			}
		}
	}
	for _, entry := range layout {
		if !slices.ContainsFunc(places, func(p string) bool { return isBelow(entry.dir, p) || isBelow(p, entry.dir) }) {
			t.Errorf("%s has no place in the table of docs/design.md", entry.dir)
		}
	}
}

// TestLayersAreTheImports compares the drawing of packages in docs/design.md
// with their imports. Each package appears there once, itself or as a directory
// above it, and its imports from this module appear below it.
func TestLayersAreTheImports(t *testing.T) {
	page, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, drawing, _ := strings.Cut(string(page), "```layers\n")
	drawing, _, found := strings.Cut(drawing, "```")
	if !found {
		t.Fatal("docs/design.md has no drawing of the layers")
	}
	layers := make(map[string]int) // the line of each directory
	for n, line := range strings.Split(drawing, "\n") {
		if line == "" {
			continue
		}
		for _, dir := range strings.Fields(line[len("programs    "):]) {
			if dir == "root" {
				dir = "."
			}
			if _, twice := layers[dir]; twice {
				t.Errorf("the drawing in docs/design.md has %s twice", dir)
			}
			layers[dir] = n
		}
	}
	layerOf := func(dir string) (drawn string, layer int, ok bool) {
		for drawn = dir; ; drawn = path.Dir(drawn) {
			if layer, ok = layers[drawn]; ok || drawn == "." {
				return drawn, layer, ok && (drawn != "." || dir == ".")
			}
		}
	}
	ours := goList(t, "./...")
	for _, dir := range nested {
		ours = append(ours, goListIn(t, dir, "./...")...)
	}
	seen := make(map[string]bool)
	for _, p := range ours {
		dir, _ := relative(p.ImportPath)
		drawn, layer, ok := layerOf(dir)
		if !ok {
			t.Errorf("the drawing in docs/design.md does not have %s", dir)
			continue
		}
		seen[drawn] = true
		for _, other := range p.Imports {
			other, own := relative(other)
			if below, lower, ok := layerOf(other); own && ok && below != drawn && lower <= layer {
				t.Errorf("%s imports %s, which is not below it in the drawing in docs/design.md", dir, other)
			}
		}
	}
	for dir := range layers {
		if !seen[dir] {
			t.Errorf("the drawing in docs/design.md has %s, which is not a package of this module", dir)
		}
	}
}

// TestFilesAreInDesign checks for the files of the root package and of
// internal/telemetry in docs/design.md, and vice versa.
func TestFilesAreInDesign(t *testing.T) {
	for dir, heading := range map[string]string{".": "In the root package:", "internal/telemetry": "In `internal/telemetry`:"} {
		var got []string
		for _, row := range tableBehind(t, heading+"\n\n| file | idea |\n|---|---|\n") {
			for _, m := range inBackticks.FindAllStringSubmatch(row[0], -1) {
				got = append(got, m[1])
			}
		}
		slices.Sort(got)
		if want := sourcesOf(t, dir); !slices.Equal(got, want) {
			t.Errorf("docs/design.md has the files %q in %s, want %q", got, dir, want)
		}
	}
}

// sourcesOf returns the names of the non-test Go files in a directory, sorted.
func sourcesOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range paths {
		if !strings.HasSuffix(p, "_test.go") {
			names = append(names, filepath.Base(p))
		}
	}
	slices.Sort(names)
	return names
}

// tableBehind returns the cells of the table in docs/design.md whose rows begin
// after a text.
func tableBehind(t *testing.T, head string) (rows [][]string) {
	t.Helper()
	page, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), head)
	table, _, found := strings.Cut(table, "\n\n")
	if !found {
		t.Fatalf("docs/design.md has no table after %q", head)
	}
	for line := range strings.SplitSeq(table, "\n") {
		rows = append(rows, strings.Split(strings.Trim(line, "|"), "|"))
	}
	return rows
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// placesOf returns the directories in a cell. All but the first may omit its
// parent.
func placesOf(cell string) (dirs []string) {
	if strings.HasPrefix(strings.TrimSpace(cell), "root ") {
		return []string{"."}
	}
	parent := ""
	for _, m := range inBackticks.FindAllStringSubmatch(cell, -1) {
		dir := strings.TrimSuffix(m[1], "/")
		if parent != "" && !strings.Contains(dir, "/") {
			dir = parent + "/" + dir
		} else if parent = path.Dir(dir); parent == "." {
			parent = ""
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// localNames returns the packages of this module in a cell, sorted.
func localNames(cell string) (names []string) {
	if strings.HasPrefix(strings.TrimSpace(cell), "root") {
		names = append(names, "root")
	}
	for _, m := range inBackticks.FindAllStringSubmatch(cell, -1) {
		if m[1] != "testing" {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return names
}

// ownImports returns the packages of this module among patterns of the table
// layout, in the notation of docs/design.md, sorted.
func ownImports(patterns []string) (names []string) {
	for _, p := range patterns {
		dir, own := strings.CutPrefix(p, "./")
		switch dir = strings.TrimSuffix(dir, "/..."); {
		case !own:
			continue
		case dir == "":
			dir = "root"
		case dir == "drivers":
			dir = "drivers/*"
		}
		names = append(names, dir)
	}
	slices.Sort(names)
	return names
}

// entryOf returns the index of the entry of layout for a directory: the entry
// with the longest directory that contains it.
func entryOf(dir string) int {
	place := -1
	for i, entry := range layout {
		if isBelow(dir, entry.dir) && (place < 0 || len(entry.dir) > len(layout[place].dir)) {
			place = i
		}
	}
	return place
}

func isBelow(dir, parent string) bool {
	return dir == parent || parent != "." && strings.HasPrefix(dir, parent+"/")
}
