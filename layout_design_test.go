package dsync_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLayoutIsInDesign compares the table layout with the table of places in docs/design.md: the places, and what they may import of this
// module.
func TestLayoutIsInDesign(t *testing.T) {
	var places []string
	for _, row := range designRows(t) {
		for _, place := range placesOf(row[0]) {
			places = append(places, place)
			if strings.HasPrefix(place, "test/") {
				continue // modules of their own, without an entry
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

// designRows returns the cells of the table of places.
func designRows(t *testing.T) (rows [][]string) {
	t.Helper()
	page, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| place | what it is | may import |\n|---|---|---|\n")
	table, _, found := strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("docs/design.md has no table of places")
	}
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("the row %q of docs/design.md has %d cells, want 3", line, len(cells))
		}
		rows = append(rows, cells)
	}
	return rows
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// placesOf returns the directories in a cell. Those after the first may leave out its parent.
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

// ownImports returns the packages of this module among patterns of the table layout, in the words of docs/design.md, sorted.
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

// entryOf returns the index of the entry of layout for a directory: the one with the longest directory that contains it.
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
