package runjob

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-dsync/dsync"
)

// permits is a flag value: the number of permits and their limit. The zero
// value requests a lock instead of permits.
type permits struct{ n, limit int }

// Set implements pflag.Value.
func (p *permits) Set(text string) error {
	first, second, _ := strings.Cut(text, "/")
	n, err1 := strconv.Atoi(first)
	limit, err2 := strconv.Atoi(second)
	switch {
	case err1 != nil || err2 != nil:
		return fmt.Errorf("2/8 acquires two of eight permits, and 2/0 two permits of the stored limit")
	case n < 1 || limit < 0 || limit > 0 && n > limit:
		return fmt.Errorf("the number of permits must be at least 1, and at most the limit")
	}
	*p = permits{n, limit}
	return nil
}

// String implements pflag.Value.
func (p *permits) String() string {
	if *p == (permits{}) {
		return ""
	}
	return fmt.Sprintf("%d/%d", p.n, p.limit)
}

// Type implements pflag.Value.
func (p *permits) Type() string { return "N/LIMIT" }

func (p *permits) asked() bool { return p.n > 0 }

func (p *permits) option() dsync.LockOption { return dsync.Permits(p.n, p.limit) }
