package history

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// testLease is a lease of an in-process lock service.
type testLease struct {
	mu       sync.Mutex
	token    uint64
	deadline time.Time
	err      error
}

func (l *testLease) Token() uint64 { return l.token }

func (l *testLease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

func (l *testLease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !time.Now().Before(l.deadline) {
		l.err = dsync.ErrLost
	}
	return l.err
}

func (l *testLease) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func TestHistoryBrackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		op := h.Begin(Attempt{Client: "c", Owner: "o", Name: "L", Mode: driver.Write})
		time.Sleep(ms)
		op.Waiting()
		time.Sleep(ms)
		l := &testLease{token: 7, deadline: time.Now().Add(100 * ms)}
		op.Returned(l, nil)
		time.Sleep(ms)
		if err := op.Check(); err != nil {
			t.Errorf("Check of a lease that is held: %v", err)
		}
		h.Wrote("L", 7, true)
		h.Saw("L", 6, false)
		l.deadline = time.Now().Add(200 * ms)
		op.Renewed()
		off := h.Fault("freeze", "server")
		time.Sleep(ms)
		off()
		op.Releasing(t.Context())
		time.Sleep(ms)
		op.Released(nil)
		l.set(driver.ErrRemoved)
		op.Lost()
		if err := op.Check(); !errors.Is(err, driver.ErrRemoved) {
			t.Errorf("Check of a lease that was removed: %v", err)
		}
		h.Note("seed 1")
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		h.Note("too late")
		o := Event{Call: 1, Client: "c", Owner: "o", Name: "L"}
		with := func(k Kind, at time.Duration, e Event) Event {
			e.Kind, e.Time, e.Call, e.Client, e.Owner, e.Name, e.Mode = k, at, o.Call, o.Client, o.Owner, o.Name, driver.Write
			return e
		}
		want := []Event{
			{Kind: KindMeta},
			with(KindCall, 0, Event{}),
			with(KindWait, ms, Event{}),
			with(KindGrant, 2*ms, Event{Token: 7, Deadline: 102 * ms}),
			with(KindCheck, 3*ms, Event{OK: true, Deadline: 102 * ms}),
			{Kind: KindWrite, Time: 3 * ms, Name: "L", Token: 7, OK: true},
			{Kind: KindRead, Time: 3 * ms, Name: "L", Token: 6},
			with(KindRenew, 3*ms, Event{Deadline: 203 * ms}),
			{Kind: KindFaultOn, Time: 3 * ms, Call: 2, Class: "freeze", Text: "server"},
			{Kind: KindFaultOff, Time: 4 * ms, Call: 2, Class: "freeze", Text: "server"},
			with(KindRelease, 4*ms, Event{OK: true, Deadline: 203 * ms}),
			with(KindReleased, 5*ms, Event{}),
			with(KindLose, 5*ms, Event{Class: ClassRemoved}),
			with(KindCheck, 5*ms, Event{Class: ClassRemoved, Deadline: 203 * ms}),
			{Kind: KindMeta, Time: 5 * ms, Text: "seed 1"},
			{Kind: KindEnd, Time: 5 * ms},
		}
		for i := range want {
			want[i].Seq = uint64(i + 1)
		}
		got := h.Events()
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("event %d:\ngot  %v\nwant %v", i, got[min(i, len(got)):], want[min(i, len(want)):])
			}
		}
	})
}

func TestHistoryClassesOfErrors(t *testing.T) {
	wrap := func(errs ...error) error { return fmt.Errorf("lock: %w", errors.Join(errs...)) }
	for _, c := range []struct {
		err  error
		kind Kind
		want string
	}{
		{wrap(dsync.ErrLocked), KindRefuse, ClassLocked},
		{wrap(dsync.ErrLocked, context.DeadlineExceeded), KindFail, ClassDeadline},
		{wrap(dsync.ErrUnknown, context.Canceled), KindFail, ClassUnknown},
		{wrap(dsync.ErrUnknown, driver.ErrSessionEnded), KindFail, ClassUnknown},
		{wrap(context.Canceled), KindFail, ClassCanceled},
		{wrap(dsync.ErrDeadlock), KindFail, ClassDeadlock},
		{wrap(dsync.ErrUnavailable), KindFail, ClassUnavailable},
		{wrap(dsync.ErrClosed), KindFail, ClassClosed},
		{wrap(driver.ErrSealed), KindFail, ClassSealed},
		{wrap(errors.ErrUnsupported), KindFail, ClassUnsupported},
		{wrap(errors.New("boom")), KindFail, ClassOther},
	} {
		h := New()
		h.Begin(Attempt{Name: "L"}).Returned(nil, c.err)
		got := h.Events()[2]
		if got.Kind != c.kind || got.Class != c.want {
			t.Errorf("%v is recorded as %s %s, want %s %s", c.err, got.Kind, got.Class, c.kind, c.want)
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{dsync.ErrLost, ClassNotHeld},
		{wrap(dsync.ErrLost, driver.ErrRemoved), ClassRemoved},
		{wrap(dsync.ErrLost, driver.ErrSessionEnded), ClassSessionEnded},
		{wrap(dsync.ErrLost, dsync.ErrUnknown), ClassNotHeld},
		{wrap(dsync.ErrUnknown, context.DeadlineExceeded), ClassUnknown},
	} {
		h := New()
		op := h.Begin(Attempt{Name: "L"})
		op.Returned(&testLease{deadline: time.Now().Add(time.Hour)}, nil)
		op.Releasing(t.Context())
		op.Released(c.err)
		if got := h.Events()[4]; got.Kind != KindNotReleased || got.Class != c.want {
			t.Errorf("%v is recorded as %s %s, want %s %s", c.err, got.Kind, got.Class, KindNotReleased, c.want)
		}
	}
}

// TestHistoryKeepsTheModeOfTheHold unlocks a Read that shared a hold for Write.
func TestHistoryKeepsTheModeOfTheHold(t *testing.T) {
	h := New()
	op := h.Begin(Attempt{Name: "L", Mode: driver.Read})
	op.Returned(&testLease{deadline: time.Now().Add(time.Hour)}, nil)
	ctx := op.Releasing(t.Context())
	l := &tapLease{Lease: &releasedLease{}, mode: driver.Write}
	op.Released(l.Release(ctx))
	var got []string
	for _, e := range h.Events()[1:] {
		got = append(got, fmt.Sprintf("%s %v", e.Kind, e.Mode))
	}
	want := "[acq.call read acq.ok read rel.call read rel.answer write rel.ok read]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

type releasedLease struct{ driver.Lease }

func (l *releasedLease) Release(context.Context) error { return nil }

func TestHistoryNeverRecordsADeadlineTooLate(t *testing.T) {
	for _, c := range []struct {
		name string
		in   time.Duration
		want time.Duration
	}{
		{"to come", time.Second, 2 * time.Second},
		{"past", -time.Second / 2, time.Second / 2},
		{"before the history", -time.Hour, 1},
		{"in a thousand years", 1<<63 - 1, time.Second + 1<<61 - 1},
	} {
		now := time.Now()
		if got := deadline(time.Second, now, &testLease{deadline: now.Add(c.in)}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := deadline(time.Second, time.Now(), &testLease{}); got != 0 {
		t.Errorf("no deadline: %v, want 0", got)
	}
}

// testService is an in-process lock service with leases and tokens. A broken
// testService forgets a lock now and then.
type testService struct {
	mu     sync.Mutex
	freed  *sync.Cond
	holder *testLease
	token  uint64
	broken bool
}

func (s *testService) lock() *testLease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.holder != nil && time.Now().Before(s.holder.deadline) && !(s.broken && rand.IntN(20) == 0) {
		s.freed.Wait()
	}
	s.token++
	s.holder = &testLease{token: s.token, deadline: time.Now().Add(50 * ms)}
	return s.holder
}

func (s *testService) unlock(l *testLease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.freed.Broadcast()
	if err := l.Err(); err != nil {
		return err
	}
	l.set(dsync.ErrNotHeld)
	if s.holder == l {
		s.holder = nil
	}
	return nil
}

// runWorkers lets eight workers lock one name, on a fake clock.
func runWorkers(t *testing.T, broken bool) *Verdict {
	var v *Verdict
	synctest.Test(t, func(t *testing.T) {
		h := New()
		s := &testService{broken: broken}
		s.freed = sync.NewCond(&s.mu)
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				for range 50 {
					op := h.Begin(Attempt{Client: fmt.Sprint("c", n), Name: "L"})
					l := s.lock()
					op.Returned(l, nil)
					time.Sleep(time.Duration(rand.IntN(60)) * ms)
					if op.Check() != nil {
						op.Lost()
					}
					op.Releasing(t.Context())
					op.Released(s.unlock(l))
				}
			})
		}
		wg.Wait()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		v = Judge(h.Events(), Bounds{Fenced: true, Wake: 100 * ms, Linger: 100 * ms, MinClients: 8})
	})
	return v
}

func TestHistoryOfACorrectService(t *testing.T) {
	v := runWorkers(t, false)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if v.Granted != 400 || v.Lost == 0 || v.Released == 0 {
		t.Errorf("not much happened: %v", v)
	}
}

func TestHistoryOfABrokenService(t *testing.T) {
	v := runWorkers(t, true)
	if !slices.Contains(rulesOf(v), RuleOverlap) {
		t.Errorf("no overlap was found: %v", v)
	}
}

func TestHistoryFileIsReadAsWritten(t *testing.T) {
	path := t.TempDir() + "/p"
	h, err := Create(path, "p")
	if err != nil {
		t.Fatal(err)
	}
	var want []Event
	for i, k := range kinds[:len(kinds)-1] {
		e := Event{Time: sharedClock(), Kind: k, Call: 1, Client: "c", Owner: "o", Name: "L\x01\u2028\"", NoWait: i%2 == 0, Mode: driver.Mode(i % 4), Permits: i, Limit: 2 * i, Token: 1<<64 - 1,
			Deadline: sharedClock(), OK: true, Class: ClassOther, Text: "a\nb"}
		h.record(e)
		e.Proc, e.Seq = "p", uint64(i+2)
		want = append(want, e)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := got[1 : len(got)-1]; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if _, err := Create(path, "q"); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second history in the same file: %v, want %v", err, os.ErrExist)
	}
	if _, err := Create(path+"2", ""); err == nil {
		t.Error("a process without a label is accepted")
	}
}

func TestHistoryReportsThatItCouldNotBeWritten(t *testing.T) {
	h, err := Create(t.TempDir()+"/p", "p")
	if err != nil {
		t.Fatal(err)
	}
	h.out.Close()
	h.Note("lost")
	if err := h.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close returns %v, want %v", err, os.ErrClosed)
	}
}

func TestReadHistoryRejectsWhatIsNotWhole(t *testing.T) {
	const first = `{"p":"w","q":1,"t":5,"e":"meta"}` + "\n"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "no events"},
		{"not even one whole event", first[:20], "no events"},
		{"a gap", first + `{"p":"w","q":3,"t":6,"e":"end"}` + "\n", "line 2: event 2 is missing, found 3"},
		{"a repetition", first + first, "line 2: event 2 is missing, found 1"},
		{"no beginning", `{"p":"w","q":1,"t":5,"e":"end"}` + "\n", "line 1: the first event"},
		{"no label", `{"q":1,"t":5,"e":"meta"}` + "\n", "line 1: the first event"},
		{"two processes", first + `{"p":"v","q":2,"t":6,"e":"end"}` + "\n", `line 2: event of process "v"`},
		{"more after the end", first + `{"p":"w","q":2,"t":6,"e":"end"}` + "\n" + `{"p":"w","q":3,"t":6,"e":"end"}` + "\n", "line 3: event after"},
		{"an unknown event", first + `{"p":"w","q":2,"t":6,"e":"dance"}` + "\n", "line 2: unknown kind"},
		{"an unknown mode", first + `{"p":"w","q":2,"t":6,"e":"end","m":4}` + "\n", "line 2: unknown mode 4"},
		{"an unknown field", first + `{"p":"w","q":2,"t":6,"e":"end","x":1}` + "\n", `line 2: json: unknown field "x"`},
		{"two events on a line", first + `{"p":"w","q":2,"t":6,"e":"end"} {}` + "\n", "line 2: not one JSON object"},
		{"an empty line", first + "\n", "line 2: EOF"},
		{"a hole", first + "\x00\x00\n", "line 2: invalid character"},
	} {
		if _, err := readEvents(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	events, err := readEvents(strings.NewReader(first + `{"p":"w","q":2,"t":6,"e":"acq.c`))
	if err != nil || len(events) != 1 {
		t.Errorf("a last line that was cut off: %v, %v", events, err)
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(dir+"/"+name, []byte(first), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(dir+"/a", dir+"/b"); err == nil || !strings.Contains(err.Error(), `both of process "w"`) {
		t.Errorf("two files of one process: %v", err)
	}
	if _, err := Read(dir + "/c"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func FuzzReadEvents(f *testing.F) {
	f.Add([]byte(`{"p":"w","q":1,"t":5,"e":"meta"}` + "\n"))
	f.Add([]byte(`{"p":"w","q":1,"t":5,"e":"meta"}` + "\n" + `{"p":"w","q":2,"t":6,"e":"acq.ok","h":3,"tok":7,"dl":-5,"ok":true}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		events, err := readEvents(strings.NewReader(string(data)))
		if err != nil {
			return
		}
		path := t.TempDir() + "/p"
		h, err := Create(path, events[0].Proc)
		if err != nil {
			t.Fatal(err)
		}
		if last := len(events) - 1; events[last].Kind == KindEnd { // Close writes an event of its own
			events = events[:last]
		}
		for _, e := range events {
			h.record(e)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		again, err := readEvents(file)
		if err != nil {
			t.Fatalf("%v does not survive writing: %v", events, err)
		}
		for i, e := range events {
			e.Seq = again[i+1].Seq
			if e != again[i+1] {
				t.Fatalf("got %v, want %v", again[i+1], e)
			}
		}
		Judge(events, Bounds{Fenced: true, FIFO: true, StoreFences: true, Detect: 1, Linger: 1, Wake: 1, Stuck: 1, Recover: 1})
	})
}

const writerEnv = "DSYNC_TEST_HISTORY_WRITER" // path of the history and label of the process

// TestHistoryWriterProcess is the main function of the processes that the tests
// below start. In any other process, it does nothing.
func TestHistoryWriterProcess(t *testing.T) {
	path, label, ok := strings.Cut(os.Getenv(writerEnv), ":")
	if !ok {
		return
	}
	h, err := Create(path, label)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100_000 {
		h.Note("event")
		if n == 500 {
			fmt.Println("running")
		}
	}
	t.Fatal("this process was not killed")
}

func TestHistoryOfKilledProcesses(t *testing.T) {
	own, err := Create(t.TempDir()+"/own", "own")
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{own.out.Name()}
	for _, label := range []string{"w1", "w2"} {
		path := t.TempDir() + "/history"
		paths = append(paths, path)
		cmd := exec.Command(os.Args[0], "-test.run=^TestHistoryWriterProcess$")
		cmd.Env = append(os.Environ(), writerEnv+"="+path+":"+label)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		own.Note("before " + label)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "running\n" {
			t.Errorf("process %s printed %q, %v", label, line, err)
		}
		off := own.Fault(FaultKill, label)
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Errorf("process %s was not killed", label)
		}
		off()
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	events, err := Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	// All processes share one clock: the events of the started processes lie
	// between the events that this process wrote before and after.
	written := map[string]int{}
	now := ""
	for _, e := range events {
		switch {
		case e.Proc == "own":
			now = e.Text
			if e.Kind == KindFaultOff {
				now = ""
			}
		case now != "before "+e.Proc && now != e.Proc:
			t.Fatalf("an event of %s at the wrong time, after %q: %v", e.Proc, now, e)
		default:
			written[e.Proc]++
		}
	}
	for _, label := range []string{"w1", "w2"} {
		if written[label] < 500 {
			t.Errorf("%d events of process %s survived, want at least 500", written[label], label)
		}
	}
	for _, reason := range Judge(events, Bounds{}).Invalid {
		if strings.Contains(reason, "not killed") {
			t.Error(reason)
		}
	}
}
