package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// widthOf returns the width of a terminal, or 0 for what is none: nothing is cut or wrapped there.
func widthOf(w io.Writer) int {
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
	red    = "31"
	green  = "32"
	yellow = "33"
)

// painter returns a function that colours a text, on a terminal alone, and not where NO_COLOR is set.
func painter(w io.Writer) func(colour, text string) string {
	if widthOf(w) == 0 || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return func(_, text string) string { return text }
	}
	return func(colour, text string) string { return "\x1b[" + colour + "m" + text + "\x1b[0m" }
}

// writeTable writes rows in columns. On a terminal of the given width, the longest cells of the widest columns are cut.
func writeTable(w io.Writer, width int, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	const gap = 2
	columns := make([]int, len(rows[0]))
	total := -gap
	for i := range columns {
		for _, row := range rows {
			columns[i] = max(columns[i], utf8.RuneCountInString(row[i]))
		}
		total += columns[i] + gap
	}
	for ; width > 0 && total > width; total-- {
		widest := 0
		for i, n := range columns {
			if n > columns[widest] {
				widest = i
			}
		}
		columns[widest]--
	}
	var line strings.Builder
	for _, row := range rows {
		line.Reset()
		for i, cell := range row {
			cell = cut(cell, columns[i])
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", columns[i]-utf8.RuneCountInString(cell)+gap))
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// cut returns a text of n characters at most.
func cut(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	runes := []rune(text)
	if n < 2 {
		return string(runes[:max(n, 0)])
	}
	return string(runes[:n-1]) + "…"
}

// wrap breaks a text between words into lines of at most width characters, which begin with indent; 0 is for one line.
func wrap(text, indent string, width int) string {
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
