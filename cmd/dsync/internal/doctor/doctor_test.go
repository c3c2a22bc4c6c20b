package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// examined is the report of `doctor` about a backend.
type examined struct {
	t *testing.T
	doctorReport
}

// doctor runs `dsync doctor`. It fails the test unless the command finds a
// fault or not, as expected.
func doctor(t *testing.T, faults bool, url string, args ...string) examined {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := clitest.Run(drivertest.Guard(t), Command(), append([]string{"--json", "--url-file", file, "--connect", drivertest.HangGuard.String()}, args...)...)
	if (err != nil) != faults {
		t.Errorf("got the error %v, want an error: %t", err, faults)
	}
	if strings.Contains(fmt.Sprint(out, err), testenv.PasswordMark) {
		t.Errorf("the password is in\n%s%v", out, err)
	}
	e := examined{t: t}
	if err := json.Unmarshal([]byte(out), &e.doctorReport); err != nil {
		t.Fatalf("%v in\n%s", err, out)
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

// wantSection fails the test unless the section of a page exists.
func wantSection(t *testing.T, link string) {
	t.Helper()
	page, anchor, _ := strings.Cut(link, "#")
	for line := range strings.Lines(clitest.Page(t, page)) {
		if heading, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); is && strings.HasPrefix(line, "#") {
			words := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			if strings.ReplaceAll(words, " ", "-") == anchor {
				return
			}
		}
	}
	t.Errorf("there is no section %s", link)
}

// want fails the test unless there is a finding of the check with the level,
// whose text and cure contain the parts.
func (e examined) want(check string, l level, text, cure string) {
	e.t.Helper()
	for _, f := range e.Findings {
		if f.Check == check && f.Level == l && strings.Contains(f.Text, text) && strings.Contains(f.Cure, cure) {
			return
		}
	}
	e.t.Errorf("want %s %s with %q, and the cure %q, in %+v", l, check, text, cure, e.Findings)
}

// no fails the test if there is a finding of the given level.
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

// TestPictureOfDoctor compares the output of `doctor` in docs/operations.md
// with a real report, except for numbers.
func TestPictureOfDoctor(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	s.Do("ACL", "SETUSER", "default", "-subscribe")
	e := doctor(t, false, "redisson://"+s.Addr)
	var text strings.Builder
	numbers := []struct{ pattern, shown string }{
		{regexp.QuoteMeta(s.Addr), "redis:6379"}, {`[0-9.]+ ms`, "0.42 ms"}, {`\d+ of 10000`, "3 of 10000"}, {`machine, to .*`, "machine, to 1ms"}, {`redis [0-9.]+`, "redis 7.2.4"},
	}
	shown := func(text string) string {
		for _, n := range numbers {
			text = regexp.MustCompile(n.pattern).ReplaceAllString(text, n.shown)
		}
		return text
	}
	e.URL = shown(e.URL)
	for i := range e.Findings {
		e.Findings[i].Text = shown(e.Findings[i].Text)
	}
	if err := e.fill(&text, 80, func(_, text string) string { return text }); err != nil {
		t.Fatal(err)
	}
	clitest.WantPicture(t, text.String())
}
