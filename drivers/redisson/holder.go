package redisson

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/go-dsync/dsync/driver"
)

// process is the host and the process id.
var process = func() string {
	host, _ := os.Hostname() // for people; a lock without it is as good
	return fmt.Sprintf("%s:%d", strings.ReplaceAll(host, "\n", " "), os.Getpid())
}()

// The value of a hold with tokens in the hash of its lock, or of the key of a
// Read, is "#" and the last token, a line with the owner, which is empty if the
// hold is the owner, a line with the process, and the note. Other holds have the
// count 1 there, as in Redisson. Redisson's scripts read the values of other
// holds only to count readers, and skip a value that is no number.
const valueMark = "#"

// noteText is the text about a holder, by owner and note. Most holders of a client have the same.
type noteText struct{ owner, note, text string }

// holderText returns the text about a holder: the value of its hold behind the token.
func (d *Driver) holderText(r *driver.Request) string {
	owner := r.Owner
	if owner == r.Hold {
		owner = ""
	}
	last := d.noted.Load()
	if last == nil || last.owner != owner || last.note != r.Note {
		last = &noteText{owner, r.Note, "\n" + strings.ReplaceAll(owner, "\n", " ") + "\n" + process + "\n" + r.Note}
		d.noted.Store(last)
	}
	return last.text
}

// readValue adds what the value of a hold says to its status.
func readValue(value string, status *driver.Status) {
	value, is := strings.CutPrefix(value, valueMark)
	fields := strings.SplitN(value, "\n", 4)
	if !is || len(fields) != 4 {
		return
	}
	if status.Mode != driver.Read { // another reader may have the last token
		status.Token, _ = strconv.ParseUint(fields[0], 10, 64)
	}
	if status.Owner = fields[1]; status.Owner == "" {
		status.Owner = status.Hold
	}
	status.Process, status.Note = fields[2], fields[3]
}
