package stress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-dsync/dsync/conformance/history"
)

// story makes events from lines of the form "attempt kind", a millisecond
// apart.
func story(lines ...string) (events []history.Event) {
	for i, line := range lines {
		attempt, kind, _ := strings.Cut(line, " ")
		events = append(events, history.Event{Proc: "w", Seq: uint64(i + 1), Time: time.Duration(i) * time.Millisecond, Name: "n", Client: "w",
			Call: uint64(attempt[0]), Kind: history.Kind(kind)})
	}
	return events
}

func TestPorcupineExplainsWhatIsLegalAlone(t *testing.T) {
	for _, test := range []struct {
		what   string
		events []history.Event
		want   porcupine.CheckResult
	}{
		{"one after the other", story("a acq.call", "a acq.ok", "a rel.call", "a rel.ok", "b acq.call", "b acq.ok"), porcupine.Ok},
		{"one client waits for the other", story("a acq.call", "a acq.ok", "b acq.call", "a rel.call", "b acq.ok", "a rel.ok"), porcupine.Ok},
		{"two holders at a time", story("a acq.call", "a acq.ok", "b acq.call", "b acq.ok", "a rel.call", "a rel.ok"), porcupine.Illegal},
		{"refused while the lock is held", story("a acq.call", "a acq.ok", "b acq.call", "b acq.refused", "a rel.call", "a rel.ok"), porcupine.Ok},
		{"refused while the lock may be held", story("a acq.call", "b acq.call", "b acq.refused", "a acq.ok"), porcupine.Ok},
		{"refused while the lock is free", story("a acq.call", "a acq.ok", "a rel.call", "a rel.ok", "b acq.call", "b acq.refused"), porcupine.Illegal},
		{"after an attempt with an unknown outcome", story("a acq.call", "a acq.err", "b acq.call", "b acq.ok", "b rel.call", "b rel.ok"), porcupine.Ok},
		{"refused because of an attempt that held the lock for a while", story("a acq.call", "b acq.call", "b acq.refused", "a acq.err", "c acq.call", "c acq.ok"), porcupine.Ok},
		{"refused because of an attempt with an unknown outcome", story("a acq.call", "a acq.err", "b acq.call", "b acq.refused"), porcupine.Ok},
		{"after a release with an unknown outcome", story("a acq.call", "a acq.ok", "a rel.call", "a rel.err", "b acq.call", "b acq.ok"), porcupine.Ok},
		{"after a loss", story("a acq.call", "a acq.ok", "b acq.call", "b acq.ok", "a lost"), porcupine.Ok},
		{"after a hold that was lost and released", story("a acq.call", "a acq.ok", "a lost", "a rel.call", "a rel.err", "b acq.call", "b acq.ok"), porcupine.Ok},
		{"pending at the end", story("a acq.call", "a acq.ok", "a rel.call", "b acq.call", "b acq.ok", "c acq.call"), porcupine.Ok},
		{"after the first fault", story("a acq.call", "a acq.ok", "f fault.on", "b acq.call", "b acq.ok"), porcupine.Ok},
	} {
		got, _ := porcupine.CheckOperationsVerbose(mutex.ToModel(), firstOperations(test.events, "n"), sliceFor)
		if got != test.want {
			t.Errorf("%s: got %v, want %v", test.what, got, test.want)
		}
	}
}

func TestTimelineShowsHoldsAndFaults(t *testing.T) {
	events := story("a acq.call", "a acq.ok", "f fault.on", "f fault.off", "a rel.call", "a rel.ok")
	events[2].Client, events[2].Class, events[2].Text = "", "freeze", "<1>"
	events[3].Client = ""
	svg := timeline(events, []string{"n"})
	for _, want := range []string{"freeze &lt;1&gt;", "0.001000 to 0.004000", "attempt 97"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the timeline lacks %q:\n%s", want, svg)
		}
	}
}

// TestSessionPassword compares the password with the result of new
// java.util.Random(0x1234L ^ 0xB3415C00L).nextBytes.
func TestSessionPassword(t *testing.T) {
	if got, want := fmt.Sprintf("%x", sessionPassword(0x1234)), "3c18abe05b0e6182741d625d127c15b0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
