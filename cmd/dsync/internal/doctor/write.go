package doctor

import (
	"fmt"
	"io"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
)

func (r *doctorReport) write(w io.Writer) error { return r.fill(w, cli.WidthOf(w), cli.Painter(w)) }

// fill writes lines of at most width characters.
func (r *doctorReport) fill(w io.Writer, width int, paint func(colour, text string) string) error {
	const indent = "                        "
	colours := map[level]string{ok: cli.Green, warning: cli.Yellow, fault: cli.Red}
	fmt.Fprintf(w, "%s\n\n", r.URL)
	for _, f := range r.Findings {
		head := fmt.Sprintf("%-7s", f.Level)
		if colour := colours[f.Level]; colour != "" {
			head = paint(colour, head)
		}
		text := cli.Wrap(cli.Printable(f.Text), indent, width)
		fmt.Fprintf(w, "%s  %-13s  %s", head, f.Check, text[len(indent):])
		if f.Cure != "" {
			fmt.Fprint(w, cli.Wrap("cure: "+cli.Printable(f.Cure), indent, width))
		}
		if f.See != "" {
			fmt.Fprint(w, cli.Wrap("see: "+f.See, indent, width))
		}
	}
	if len(r.Promises) > 0 {
		fmt.Fprint(w, "\nWhat the backend promises (docs/guarantees.md lists them fault by fault):\n")
		for _, p := range r.Promises {
			fmt.Fprint(w, "  - "+cli.Wrap(p, "    ", width)[4:])
		}
	}
	_, err := fmt.Fprintf(w, "\n%s, %s\n", cli.Plural(r.Faults, "fault"), cli.Plural(r.Warnings, "warning"))
	return err
}

// promises describes the promises of a backend in words.
func promises(i driver.Info, ttl time.Duration) []string {
	list := []string{orderText("locks", i.Order), tokensText(i.Fencing)}
	if i.ReadWrite.Offered {
		list = append(list, "a name has many readers or one writer; "+orderText("readers and writers", i.ReadWrite.Order))
	} else {
		list = append(list, "no Read and Write: a name has one holder")
	}
	if i.Permits.Offered {
		list = append(list, "a name can have permits; "+orderText("permits", i.Permits.Order))
	}
	list = append(list, fmt.Sprintf("the lock of a process that vanishes is free %v after its TTL at the latest", i.LateFor(ttl)),
		fmt.Sprintf("a holder whose lock is removed is notified within %v", i.Detect),
		fmt.Sprintf("TTL: %s; here %v", cli.Bounds(i), ttl))
	return list
}

func orderText(what string, o driver.Order) string {
	switch o {
	case driver.FIFO:
		return what + " are granted in the order of arrival"
	case driver.FIFOByClient:
		return what + " are granted to clients in the order of arrival, and within a client to callers in the order of arrival"
	}
	return what + " are granted in no order: any waiter may be next"
}

func tokensText(f driver.Fencing) string {
	switch f {
	case driver.Durable:
		return "fencing tokens rise as long as the backend keeps acknowledged data"
	case driver.Volatile:
		return "fencing tokens rise, but may start over when the backend loses data"
	}
	return "no fencing tokens: a resource cannot detect a late holder"
}
