package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// examined is what `doctor` said of a backend.
type examined struct {
	t *testing.T
	doctorReport
}

// doctor runs `dsync doctor`, and fails the test unless it ends with a fault or without one.
func doctor(t *testing.T, faults bool, url string, args ...string) examined {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status := exitDone
	if faults {
		status = exitFailed
	}
	p := &two{t: t}
	r := p.bare(append([]string{"doctor", "--json", "--url-file", file, "--connect", drivertest.HangGuard.String()}, args...)...).want(status)
	r.not(testenv.PasswordMark)
	e := examined{t: t}
	if err := json.Unmarshal([]byte(r.out), &e.doctorReport); err != nil {
		t.Fatalf("%v in\n%s", err, r.out)
	}
	for _, f := range e.Findings {
		if (f.Level == fault || f.Level == warning) && (f.Cure == "" || f.See == "") {
			t.Errorf("%+v has no cure, or no section of the documents", f)
		}
		if f.See != "" {
			wantSection(t, f.See)
		}
	}
	return e
}

var notInAnchor = regexp.MustCompile("[^a-z0-9 _-]")

// wantSection fails the test unless there is a section of a page.
func wantSection(t *testing.T, link string) {
	t.Helper()
	page, anchor, _ := strings.Cut(link, "#")
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if heading, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); is && strings.HasPrefix(line, "#") {
			words := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			if strings.ReplaceAll(words, " ", "-") == anchor {
				return
			}
		}
	}
	t.Errorf("there is no section %s", link)
}

// want fails the test unless there is a finding of a check with a level, whose text and cure have the parts.
func (e examined) want(check string, l level, text, cure string) {
	e.t.Helper()
	for _, f := range e.Findings {
		if f.Check == check && f.Level == l && strings.Contains(f.Text, text) && strings.Contains(f.Cure, cure) {
			return
		}
	}
	e.t.Errorf("want %s %s with %q, and the cure %q, in %+v", l, check, text, cure, e.Findings)
}

// no fails the test if there is a finding of a level.
func (e examined) no(l level) {
	e.t.Helper()
	for _, f := range e.Findings {
		if f.Level == l {
			e.t.Errorf("want no %s: %+v", l, f)
		}
	}
}

func TestDoctorInMemory(t *testing.T) {
	e := doctor(t, false, "memory://doctor")
	e.want("open", ok, "accepts", "")
	e.want("lock", ok, "p50", "")
	if e.Pairs == nil || e.Pairs.Pairs != pairsMeasured || len(e.Promises) == 0 {
		t.Errorf("got %+v", e.doctorReport)
	}
}

func TestDoctorIsReadable(t *testing.T) {
	p := &two{t: t}
	p.bare("doctor", "memory://doctor").want(exitDone, "ok       lock", "What the backend promises", "0 faults, 0 warnings")
	p.bare("doctor", "redisson://127.0.0.1:1", "--connect", "1s").want(exitFailed, "fault    reach", "cure: is the server running", "see: docs/choosing.md")
	p.bare("doctor", "redisson://127.0.0.1", "etcd://127.0.0.1").want(exitUsage, "one URL")
	p.bare("doctor", "redisson://:"+testenv.PasswordMark+"@127.0.0.1").want(exitUsage, "DSYNC_URL").not(testenv.PasswordMark)
}

func TestWrap(t *testing.T) {
	const text = "one two three four five six seven eight nine ten"
	if got, want := wrap(text, "  ", 0), "  "+text+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got := wrap(text, "  ", 24)
	if strings.ReplaceAll(got, "\n  ", " ") != "  "+text+"\n" {
		t.Errorf("got %q, which has other words", got)
	}
	for line := range strings.Lines(got) {
		if len(strings.TrimSuffix(line, "\n")) > 24 {
			t.Errorf("%q is too long", line)
		}
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	rows := [][]string{{"NAME", "HOLDER"}, {"żółw", strings.Repeat("h", 50)}, {"b", "x"}}
	for _, width := range []int{0, 30, 10} {
		var out strings.Builder
		if err := writeTable(&out, width, rows); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); width > 0 && n > width {
				t.Errorf("width %d: %q has %d characters", width, line, n)
			}
		}
		if width == 0 && !strings.Contains(out.String(), strings.Repeat("h", 50)) {
			t.Errorf("got %q, which is cut", out.String())
		}
	}
}
