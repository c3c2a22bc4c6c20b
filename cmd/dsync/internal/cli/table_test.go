package cli

import (
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	const text = "one two three four five six seven eight nine ten"
	if got, want := Wrap(text, "  ", 0), "  "+text+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got := Wrap(text, "  ", 24)
	if strings.ReplaceAll(got, "\n  ", " ") != "  "+text+"\n" {
		t.Errorf("got %q, which has other words", got)
	}
	for line := range strings.Lines(got) {
		if len(strings.TrimSuffix(line, "\n")) > 24 {
			t.Errorf("%q is too long", line)
		}
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	rows := [][]string{{"NAME", "HOLDER", "SINCE", "TOKEN"}, {"żółw", strings.Repeat("h", 50) + "end", NoValue, "1795435927914568"}, {"b", "x", NoValue, "7"}}
	for _, width := range []int{0, 80, 60, 40} {
		var out strings.Builder
		if err := WriteTable(&out, width, rows, 2); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); width > 0 && n > width {
				t.Errorf("width %d: %q has %d characters", width, line, n)
			}
		}
		if whole := strings.Contains(text, rows[1][1]); whole != (width == 0) && width != 80 {
			t.Errorf("width %d: got\n%s", width, text)
		}
		if !strings.Contains(text, "end ") || !strings.Contains(text, rows[1][3]) || strings.Contains(text, "SINCE") != (width == 0) {
			t.Errorf("width %d: want the end of the long cell, the whole token, and on a terminal no empty column, in\n%s", width, text)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got, want := Printable("a\x1b[31m\nżółw\u202e"), "a\ufffd[31m żółw\ufffd"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
