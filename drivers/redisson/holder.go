package redisson

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

// holderTTL is how long the text about a holder is kept at least. The scripts have this time too.
const holderTTL = time.Hour

// process is the host and the process id.
var process = func() string {
	host, _ := os.Hostname() // for people; a lock without it is as good
	return fmt.Sprintf("%s:%d", strings.ReplaceAll(host, "\n", " "), os.Getpid())
}()

// noteText is the text about a holder, by owner and note. Most holders of a client have the same.
type noteText struct{ owner, note, text string }

// holderText returns the text about a holder, without its first line, the hold: a line with the owner, empty if the hold is the owner, a
// line with the process, and the note.
func (d *Driver) holderText(r *driver.Request) string {
	owner := r.Owner
	if owner == r.Hold {
		owner = ""
	}
	last := d.noted.Load()
	if last == nil || last.owner != owner || last.note != r.Note {
		last = &noteText{owner, r.Note, strings.ReplaceAll(owner, "\n", " ") + "\n" + process + "\n" + r.Note}
		d.noted.Store(last)
	}
	return last.text
}

// readHolder adds the text about a holder to its status. A text about another hold is older, and means nothing.
func readHolder(text string, status *driver.Status) {
	fields := strings.SplitN(text, "\n", 4)
	if len(fields) != 4 || fields[0] != status.Hold {
		return
	}
	if status.Owner = fields[1]; status.Owner == "" {
		status.Owner = status.Hold
	}
	status.Process, status.Note = fields[2], fields[3]
}

// notesEnd reports whether the server will have forgotten the text about the holder before the end of the hold, or soon.
func (l *lease) notesEnd(now int64) bool {
	until := l.notedUntil.Load()
	return until != 0 && until < max(l.expires.Load(), now+int64(holderTTL/2))
}

// noteAgain writes the texts about the holders of leases once more, for leases that are held for long.
func (d *Driver) noteAgain(ctx context.Context, client rueidis.Client, leases []*lease) {
	for some := range slices.Chunk(leases, renewRuns) {
		now := d.now()
		calls := make([]call, len(some))
		until := make([]int64, len(some))
		for i, l := range some {
			r := l.request
			left := time.Duration(max(0, l.expires.Load()-now)) + holderTTL
			until[i] = now + int64(left)
			calls[i] = call{holderScript, []string{r.Name}, []string{fieldOf(r.Mode, r.Hold), prefixName(holderPrefix, r.Name), d.holderText(r), d.milliseconds(left)}}
		}
		results, _ := d.evalAll(ctx, client, calls, 0)
		for i, l := range some {
			if results[i].Error() == nil {
				l.notedUntil.Store(until[i])
			}
		}
	}
}
