package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// wrapHelp refills the help of a command and its subcommands if the terminal is
// narrower than the help was written for.
func wrapHelp(c *cobra.Command, width int) {
	if width == 0 {
		return
	}
	c.SetUsageTemplate(strings.ReplaceAll(c.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", width)))
	var fill func(c *cobra.Command)
	fill = func(c *cobra.Command) {
		c.Long = refill(c.Long, width)
		for _, below := range c.Commands() {
			fill(below)
		}
	}
	fill(c)
}

// refill breaks a text into lines of the given width. Lines without an indent
// form one paragraph. So do a list item and the following lines that have the
// indent of its explanation.
func refill(text string, width int) string {
	var out strings.Builder
	var paragraph []string
	head, indent := "", ""
	end := func() {
		if len(paragraph) > 0 {
			filled := cli.Wrap(strings.Join(paragraph, " "), indent, width)
			out.WriteString(head + filled[min(len(head), len(filled)):])
			paragraph, head, indent = nil, "", ""
		}
	}
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimSuffix(line, "\n")
		body := strings.TrimLeft(line, " ")
		margin := line[:len(line)-len(body)]
		switch {
		case body == "":
			end()
			out.WriteString("\n")
			continue
		case margin == indent && len(paragraph) > 0:
		case margin == "":
			end()
		default:
			end()
			head = margin
			if label, explained, is := strings.Cut(body, "  "); is {
				text := strings.TrimLeft(explained, " ")
				head = line[:len(margin)+len(label)+2+len(explained)-len(text)]
				body = text
			}
			indent = strings.Repeat(" ", utf8.RuneCountInString(head))
		}
		paragraph = append(paragraph, body)
	}
	end()
	return strings.TrimSuffix(out.String(), "\n")
}
