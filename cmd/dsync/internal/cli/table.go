package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// WidthOf returns the width of a terminal, or 0 for any other writer, whose
// text is not cut or wrapped.
func WidthOf(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// The colours of a terminal.
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
)

// Painter returns a function that colours a text. It colours only on a
// terminal, and only if NO_COLOR is not set.
func Painter(w io.Writer) func(colour, text string) string {
	if WidthOf(w) == 0 || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return func(_, text string) string { return text }
	}
	return func(colour, text string) string { return "\x1b[" + colour + "m" + text + "\x1b[0m" }
}

// WriteTable writes rows in columns, below a row of headings. On a terminal of
// the given width, it omits columns without a value, and cuts long cells in the
// first some columns.
func WriteTable(w io.Writer, width int, rows [][]string, some int) error {
	const gap = 2
	columns, total := ColumnsOf(rows, width > 0), -gap
	for _, n := range columns {
		if n > 0 {
			total += n + gap
		}
	}
	for ; width > 0 && total > width; total-- {
		widest := 0
		for i, n := range columns[:some] {
			if n > columns[widest] {
				widest = i
			}
		}
		if columns[widest] <= shortest {
			break
		}
		columns[widest]--
	}
	var line strings.Builder
	for _, row := range rows {
		line.Reset()
		for i, cell := range row {
			if columns[i] > 0 {
				cell = cut(cell, columns[i])
				line.WriteString(cell)
				line.WriteString(strings.Repeat(" ", columns[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// shortest is the minimum width of a cut cell.
const shortest = 8

// NoValue is a cell whose value the backend does not store.
const NoValue = "-"

// ColumnsOf returns the widths of the columns. The width is 0 for empty columns
// that are omitted.
func ColumnsOf(rows [][]string, leaveOut bool) []int {
	columns := make([]int, len(rows[0]))
	for i := range columns {
		empty := leaveOut
		for n, row := range rows {
			columns[i] = max(columns[i], utf8.RuneCountInString(row[i]))
			empty = empty && (n == 0 || row[i] == NoValue)
		}
		if empty {
			columns[i] = 0
		}
	}
	return columns
}

// cut shortens a text to at most n characters. It removes the middle, because
// names with the same beginning often have different ends.
func cut(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	end := (n - 1) / 3
	return string(runes[:n-1-end]) + "…" + string(runes[len(runes)-end:])
}

// Wrap breaks a text between words into lines of at most width characters that
// begin with indent. A width of 0 means one line.
func Wrap(text, indent string, width int) string {
	room := width - utf8.RuneCountInString(indent)
	if width == 0 || room < 20 {
		return indent + text + "\n"
	}
	var out strings.Builder
	line := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case line == 0:
			out.WriteString(indent)
		case line+1+n > room:
			out.WriteString("\n" + indent)
			line = 0
		default:
			out.WriteString(" ")
			line++
		}
		out.WriteString(word)
		line += n
	}
	return out.String() + "\n"
}

// Printable replaces characters that a terminal would interpret, in text from
// servers or other programs.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func Dash(s string) string {
	if s == "" {
		return NoValue
	}
	return s
}

func Count(n int) string {
	if n < 0 {
		return "?"
	}
	return strconv.Itoa(n)
}

func Token(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// Write writes the result of a command as JSON or as text.
func Write(w io.Writer, asJSON bool, v any, text func(io.Writer) error) error {
	if asJSON {
		return WriteJSON(w, v)
	}
	return text(w)
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func Milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
