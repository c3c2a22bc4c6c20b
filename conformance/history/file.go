package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Create returns a History that writes to a new file at path: one JSON object per line, one write per line, nothing kept
// back, so that the records survive the death of the process. process is the label of this process, unique in the run; a
// process that is started again takes a new label and a new file.
//
// The time is that of a clock which all processes of the machine share: CLOCK_MONOTONIC on Linux. Elsewhere it is the wall clock,
// and a run in which somebody sets the wall clock is worthless.
func Create(path, process string) (*History, error) {
	if process == "" {
		return nil, errors.New("history: the process needs a label")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	h := &History{now: sharedClock, proc: process, out: &file{f}}
	h.record(Event{Time: h.now(), Kind: KindMeta, Text: fmt.Sprintf("pid %d, %s", os.Getpid(), time.Now().UTC().Format(time.RFC3339))})
	if h.err != nil {
		return nil, errors.Join(h.err, f.Close())
	}
	return h, nil
}

type file struct{ *os.File }

func (f *file) write(e Event) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// Read reads the files of all processes of a run and returns their events in the order that Judge expects. Each file has to be the whole
// and unbroken record of one process, otherwise Read returns an error; only a last line without its end, cut off by the death of the
// process, is left out.
func Read(paths ...string) ([]Event, error) {
	var all [][]Event
	from := map[string]string{}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		events, err := readEvents(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("history: %s: %w", path, err)
		}
		proc := events[0].Proc
		if other, taken := from[proc]; taken {
			return nil, fmt.Errorf("history: %s and %s are both of process %q", other, path, proc)
		}
		from[proc] = path
		all = append(all, events)
	}
	return merge(all...), nil
}

// readEvents reads the file of one process. It returns at least one event, or an error.
func readEvents(r io.Reader) ([]Event, error) {
	var events []Event
	in := bufio.NewReader(r)
	for n := uint64(1); ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		e, err := parseEvent(line)
		if err == nil {
			err = follows(events, e, n)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return nil, errors.New("no events")
	}
	return events, nil
}

func parseEvent(line []byte) (Event, error) {
	var e Event
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return e, err
	}
	if d.InputOffset() != int64(len(line)-1) {
		return e, errors.New("not one JSON object")
	}
	if !slices.Contains(kinds, e.Kind) {
		return e, fmt.Errorf("unknown kind of event %q", e.Kind)
	}
	if e.Mode < driver.Exclusive || e.Mode > driver.Permit {
		return e, fmt.Errorf("unknown mode %d", e.Mode)
	}
	return e, nil
}

// follows returns an error if e cannot be the nth event of a process.
func follows(events []Event, e Event, n uint64) error {
	switch {
	case e.Seq != n:
		return fmt.Errorf("event %d is missing, found %d", n, e.Seq)
	case n == 1 && (e.Kind != KindMeta || e.Proc == ""):
		return fmt.Errorf("the first event is %q of process %q", e.Kind, e.Proc)
	case n > 1 && e.Proc != events[0].Proc:
		return fmt.Errorf("event of process %q in the file of %q", e.Proc, events[0].Proc)
	case n > 1 && events[n-2].Kind == KindEnd:
		return errors.New("event after the end")
	}
	return nil
}
