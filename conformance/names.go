package conformance

import (
	"errors"
	"fmt"
	"strings"
)

var namesChecks = []Check{
	{"names/any", "Any valid name can be locked: spaces, slashes, braces, quotes, any script, up to 1 KiB.", anyName},
	{"names/distinct", "Different names are different locks, however similar: in case, in escapes, as paths, in Unicode forms.", distinctNames},
}

// oddNames are names that some backend, encoding or script has stumbled over.
var oddNames = []string{
	" ", "a", "A", "a ", " a", "a b", "a\tb", "a\nb", "a\r\nb", "\x01", "\x7f", "~", "-", "_", ":", ";", ".", "..", "a.", "...",
	"/", "//", "/a", "a/", "a/b", "a//b", "a/b/c", "a/./b", "a/../b", "/a/b", "zookeeper", "lock", "0", "a0",
	`\`, `a\b`, "%", "%%", "%s", "%d", "%00", "%2F", "%2f", "a%2Fb", "a%2fb", "a%252Fb", "a+b", "a b%20c", "a&b=c", "a?b", "a#b",
	"{", "}", "{}", "a{b", "a}b", "{a}", "a{b}c", "{a}{b}", "{}a", "a{}b{c}", "${x}", "{{a}}", "[a]", "*", "a*", "?", "(", "|", "^$",
	"'", "''", `"`, "`", "'; --", "$1", "<a>", "!", "@", "a,b", "a=b", "mode", "a:b", "a:b:c", "lock:{a}",
	"é", "e\u0301", "ß", "SS", "ss", "İ", "i", "日本語", "\u0639\u0631\u0628", "👩‍👩‍👧", "\u200b", "\ufeff", "\u202e", "\ufffd", "\U0010ffff",
}

// oddNames returns the odd names, and long ones. Nobody else uses these names.
func (e *env) oddNames() []string {
	var all []string
	for _, n := range oddNames {
		all = append(all, n+"|"+e.id, e.id+"|"+n)
	}
	long := e.id + strings.Repeat("n", 1024)
	return append(all, long[:1024], long[:1023], strings.Repeat("é", 500)+e.id, strings.Repeat("/", 200)+e.id, strings.Repeat("{", 200)+e.id)
}

func anyName(e *env) error {
	a, b := e.driver(), e.driver()
	for _, name := range e.oddNames() {
		r := a.acquire(name, noWait)
		if r.lease == nil {
			if errors.Is(r.err, errors.ErrUnsupported) {
				continue // a driver may say that its backend cannot keep a name
			}
			return fmt.Errorf("the name %.80q cannot be locked: %w", name, r.err)
		}
		if err := b.refused(name); err != nil {
			return err
		}
		r.release()
	}
	return nil
}

func distinctNames(e *env) error {
	a, b := e.driver(), e.driver()
	held := map[string]*request{}
	for _, name := range e.oddNames() {
		if held[name] != nil {
			continue
		}
		r := a.acquire(name, noWait)
		switch {
		case r.lease != nil:
			held[name] = r
		case !errors.Is(r.err, errors.ErrUnsupported):
			return fmt.Errorf("the name %.80q cannot be locked while others are held, none of which is the same: %w", name, r.err)
		}
	}
	for name, r := range held {
		r.release()
		if again := b.acquire(name, noWait); again.lease == nil {
			return fmt.Errorf("the name %.80q is not free after its release, while others are held: %w", name, again.err)
		}
	}
	return nil
}
