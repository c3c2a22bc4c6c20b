package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/drivers/migrate"
)

const (
	maxName = 1024

	// Reserved is the prefix of names that drivers/migrate uses internally.
	Reserved = "dsync:migrate:"
)

// NameFlags select the names that a command works on. No backend can list free
// names.
type NameFlags struct{ File string }

func (f *NameFlags) Add(c *cobra.Command) {
	c.Flags().StringVar(&f.File, "names", "", "`FILE` with names of locks, one per line; - means standard input")
}

// Read returns the given names without duplicates.
func (f *NameFlags) Read(c *cobra.Command, args []string) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	add := func(name, where string) error {
		if err := CheckName(name); err != nil {
			return Usage(fmt.Errorf("%s: %w", where, err))
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
		return nil
	}
	for _, name := range args {
		if err := add(name, "name "+Show(name)); err != nil {
			return nil, err
		}
	}
	if f.File == "" {
		return names, nil
	}
	in, closeFile, err := f.open(c)
	if err != nil {
		return nil, Usage(err)
	}
	defer closeFile()
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		if lines.Text() == "" || strings.HasPrefix(lines.Text(), Reserved) {
			// ls also lists the seals of the migration itself.
			continue
		}
		if err := add(lines.Text(), fmt.Sprintf("--names %s, line %d", f.File, n)); err != nil {
			return nil, err
		}
	}
	if err := lines.Err(); err != nil {
		return nil, Usage(fmt.Errorf("--names %s: %w", f.File, err))
	}
	return names, nil
}

// Some is like Read, but fails if names are required and none are given.
func (f *NameFlags) Some(c *cobra.Command, args []string, needed bool) ([]string, error) {
	names, err := f.Read(c, args)
	if err == nil && len(names) == 0 && needed {
		err = Usage(errors.New("no names: give them as arguments or by --names FILE (dsync ls lists the held names; no backend knows free ones)"))
	}
	return names, err
}

func (f *NameFlags) open(c *cobra.Command) (in io.Reader, closeFile func(), err error) {
	if f.File == "-" {
		return c.InOrStdin(), func() {}, nil
	}
	file, err := os.Open(f.File)
	if err != nil {
		return nil, nil, err
	}
	return file, func() { file.Close() }, nil
}

func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("a name has 1 to %d bytes of UTF-8 without NUL", maxName)
	case strings.HasPrefix(name, Reserved):
		return migrate.ErrReserved
	}
	return nil
}

// Show returns a name unchanged, or quoted if it could not be read as one word.
func Show(name string) string {
	if len(name) > maxName {
		name = name[:64] + "..."
	}
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

// Plural returns "1 name" or "2 names".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Are returns "1 name is" or "2 names are".
func Are(n int, noun string) string {
	if n == 1 {
		return Plural(n, noun) + " is"
	}
	return Plural(n, noun) + " are"
}
