package serve

import (
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/admin"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
)

// shownBy returns the HTML in an event.
func shownBy(t *testing.T, p *page, v view, now posted) string {
	t.Helper()
	return htmlOf(t, string(p.event(v, now)))
}

func htmlOf(t *testing.T, event string) (text string) {
	t.Helper()
	line, rest, _ := strings.Cut(event, "\n")
	if data, is := strings.CutPrefix(line, "data: "); !is || rest != "\n" || json.Unmarshal([]byte(data), &text) != nil || text == "" {
		t.Fatalf("no event with a text: %q", event)
	}
	return text
}

var (
	firstCell  = regexp.MustCompile(`<tr><td>([^<]*)</td>`)
	formAction = regexp.MustCompile(` formaction="([^"]*)"`)
)

// TestServeShowsEveryName uses names with all characters below U+0600, and
// names that browsers or terminals interpret.
func TestServeShowsEveryName(t *testing.T) {
	t.Parallel()
	var names []string
	for r := rune(1); r < 0x600; r++ {
		names = append(names, "a"+string(r)+"b")
	}
	names = append(names, " ", "\u2028", "\u202eevil", "\ufeff", "\ufffd", "\U0001f600", "\U000e0001", "</td><script>alert(1)</script>", `" onclick="alert(1)`, "data: x\r\n\r\ndata: y",
		"{{.}}", "javascript:alert(1)", "%3Cb%3E&amp;", "a&name=b&grant=c", strings.Repeat("ł", 512))
	p := &page{token: "any"}
	for some := range slices.Chunk(names, rowsOfPage) {
		s := &sheet{first: 1, last: len(some), total: len(some), next: &some[0]}
		for _, name := range some {
			s.reports = append(s.reports, admin.NewLockReport(name, driver.Status{Held: true, Holders: 1, Hold: name, Owner: name, Note: name, Process: name, Queue: []string{name}}))
		}
		text := shownBy(t, p, view{find: some[0]}, posted{sheet: s, problem: cli.Printable(some[0])})
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x202e || r == 0x2028 }); i >= 0 {
			t.Errorf("a character that browsers interpret at %q", text[i:min(i+20, len(text))])
		}
		cells, actions := firstCell.FindAllStringSubmatch(text, -1), formAction.FindAllStringSubmatch(text, -1)
		if len(cells) != len(some) || len(actions) != len(some) || strings.Count(text, "<") != strings.Count(shownBy(t, p, view{}, posted{sheet: harmless(s)}), "<")+2 {
			t.Fatalf("%d names, %d cells, %d buttons in\n%s", len(some), len(cells), len(actions), text)
		}
		for i, name := range some {
			if got := html.UnescapeString(cells[i][1]); got != cli.Show(name) {
				t.Errorf("got %q, want %q", got, cli.Show(name))
			}
			u, err := url.Parse(html.UnescapeString(actions[i][1]))
			if err != nil || u.Path != "release" || u.Query().Get("name") != name || u.Query().Get("grant") != s.reports[i].Grant() {
				t.Errorf("the button of %q sends %v, %v", name, u, err)
			}
		}
	}
}

// harmless returns a sheet with the same number of names, which consist of
// letters only.
func harmless(s *sheet) *sheet {
	h := *s
	h.reports = slices.Clone(s.reports)
	for i := range h.reports {
		h.reports[i] = admin.NewLockReport("x", driver.Status{Held: true, Holders: 1, Hold: "x", Owner: "x", Note: "x", Process: "x", Queue: []string{"x"}})
	}
	return &h
}
