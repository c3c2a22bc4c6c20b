package serve

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/admin"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var screenshot = flag.String("screenshot", "", "file for a screenshot of the page of `dsync serve`")

// site is a served page.
type site struct {
	*httptest.Server
	t    *testing.T
	page *page
	log  bytes.Buffer // must be read after Close
}

// serveSite serves a page of a board until the end of the test. Its connections
// buffer little unread data.
func serveSite(t *testing.T, b *board, token string) *site {
	t.Helper()
	over, end := context.WithCancel(t.Context())
	s := &site{t: t}
	s.page = &page{board: b, hosts: map[string]bool{"127.0.0.1": true}, token: token, log: log.New(&s.log, "", 0), places: make(chan struct{}, 3), over: over}
	s.Server = httptest.NewUnstartedServer(s.page.handler())
	s.Config.ReadTimeout = 200 * time.Millisecond
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(4096)
		return ctx
	}
	s.Start()
	t.Cleanup(func() {
		end()
		s.Close()
	})
	return s
}

// do sends a request and returns the status and the text of the response.
func (s *site) do(method, path string, change func(*http.Request), form url.Values) (int, string, http.Header) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if change != nil {
		change(r)
	}
	answer, err := s.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

// events is the stream of one page.
type events struct {
	t  *testing.T
	in *bufio.Reader
	io.Closer
}

func (s *site) open() *events {
	s.t.Helper()
	return openEvents(s.t, s.Client(), s.URL+"/events")
}

func openEvents(t *testing.T, c *http.Client, url string) *events {
	t.Helper()
	answer, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("got status %s", answer.Status)
	}
	return &events{t, bufio.NewReader(answer.Body), answer.Body}
}

// await reads events until one matches.
func (e *events) await(fits func(html string) bool) string {
	e.t.Helper()
	for {
		line, err := e.in.ReadString('\n')
		if err != nil {
			e.t.Fatal(err)
		}
		empty, err := e.in.ReadString('\n')
		if err != nil {
			e.t.Fatal(err)
		}
		if text := htmlOf(e.t, line+empty); fits(text) {
			return text
		}
	}
}

func (e *events) awaitText(part string) string {
	e.t.Helper()
	return e.await(func(html string) bool { return strings.Contains(html, part) })
}

// TestServeRefusesOtherNames sends requests with foreign host names, as if
// another owner's name pointed to the server.
func TestServeRefusesOtherNames(t *testing.T) {
	t.Parallel()
	f := serveFlags{listen: "127.0.0.1:0", every: time.Second, names: []string{"locks.example.org"}}
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	b, _ := boardOf(t, memory.New(nil), time.Hour)
	s := serveSite(t, b, "")
	s.page.hosts = f.hosts
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:8080": 200, "localhost:1": 200, "LOCALHOST": 200, "[::1]": 200, "[::1]:8080": 200, "locks.example.org": 200,
		"evil.example": 421, "127.0.0.1.evil.example:8080": 421, "10.0.0.1": 421, "0.0.0.0:8080": 421, "[::]:80": 421, "localhost.": 421, "locks.example.org.evil": 421,
	} {
		for _, path := range []string{"/", "/script.js"} {
			if got, text, _ := s.do("GET", path, func(r *http.Request) { r.Host = host }, nil); got != want {
				t.Errorf("%s as %s: got %d %s, want %d", path, host, got, text, want)
			}
		}
	}
}

// TestServeIsForItsOwnPages sends the requests that other sites can trigger in
// a browser and checks what they cannot read.
func TestServeIsForItsOwnPages(t *testing.T) {
	t.Parallel()
	b, _ := boardOf(t, memory.New(nil), time.Hour)
	s := serveSite(t, b, "")
	for site, want := range map[string]map[string]int{
		"cross-site": {"/": 200, "/events": 403, "/script.js": 403},
		"same-site":  {"/": 200, "/events": 403, "/script.js": 403},
		"none":       {"/": 200, "/script.js": 200},
	} {
		for path, want := range want {
			got, _, header := s.do("GET", path, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", site) }, nil)
			if got != want || header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s: got %d %v, want %d", site, path, got, header, want)
			}
			for name, value := range headers {
				if header.Get(name) != value {
					t.Errorf("%s: got %s %q", path, name, header.Get(name))
				}
			}
		}
	}
	for _, path := range []string{"/", "/style.css", "/script.js"} {
		if _, text, _ := s.do("GET", path, nil, nil); regexp.MustCompile(`//[a-z]|url\(|@import`).MatchString(strings.ReplaceAll(text, "memory://board", "")) {
			t.Errorf("%s names another host:\n%s", path, text)
		}
	}
	if got, text, _ := s.do("POST", "/release", nil, nil); got != 404 && got != 405 {
		t.Errorf("a release without --allow-release: got %d %s", got, text)
	}
}

// TestServeReleases sends incomplete release requests and then releases a lock
// with a complete one.
func TestServeReleases(t *testing.T) {
	t.Parallel()
	d := memory.New(nil)
	b, _ := boardOf(t, d, time.Hour)
	token := testenv.Password()
	s := serveSite(t, b, token)
	const name = "orders/42 <&\r\n>"
	lease := clitest.Lock(t, b.backend.Client, name)
	status, err := b.backend.Client.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	report := admin.NewLockReport(name, status)
	query := func(name, grant string) string {
		return "/release?" + url.Values{"name": {name}, "grant": {grant}}.Encode()
	}
	right, form := query(name, report.Grant()), url.Values{"token": {token}}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	var all bytes.Buffer
	for _, test := range []struct {
		what, method, path string
		change             func(*http.Request)
		form               url.Values
		want               int
	}{
		{"no token", "POST", right, nil, nil, 403},
		{"another token", "POST", right, nil, url.Values{"token": {testenv.Password()}}, 403},
		{"a part of the token", "POST", right, nil, url.Values{"token": {token[:len(token)-1]}}, 403},
		{"more than the token", "POST", right, nil, url.Values{"token": {token + "x"}}, 403},
		{"the token in the URL", "POST", right + "&token=" + token, nil, nil, 403},
		{"a body that does not end", "POST", right, nil, url.Values{"x": {strings.Repeat("x", 5000)}, "token": {token}}, 403},
		{"GET", "GET", right, nil, form, 405},
		{"a form on another site", "POST", right, header("Sec-Fetch-Site", "cross-site"), form, 403},
		{"from another origin", "POST", right, header("Origin", "http://evil.example"), form, 403},
		{"from no origin", "POST", right, header("Origin", "null"), form, 403},
		{"under another host name", "POST", right, func(r *http.Request) { r.Host = "evil.example" }, form, 421},
		{"another grant", "POST", query(name, "0"), nil, form, 409},
		{"no grant", "POST", query(name, ""), nil, form, 409},
		{"another name", "POST", query("free", report.Grant()), nil, form, 409},
		{"no name", "POST", query("", report.Grant()), nil, form, 502},
	} {
		got, text, answered := s.do(test.method, test.path, test.change, test.form)
		if got != test.want {
			t.Errorf("%s: got %d %s, want %d", test.what, got, text, test.want)
		}
		fmt.Fprint(&all, text, answered)
		if err := lease.Err(); err != nil {
			t.Fatalf("%s: %v", test.what, err)
		}
	}
	got, text, _ := s.do("POST", right, header("Origin", s.URL), form)
	if got != 200 || !strings.Contains(html.UnescapeString(text), cli.Show(name)+" was released") {
		t.Errorf("got %d %s", got, text)
	}
	<-lease.Done()
	next := clitest.Lock(t, b.backend.Client, name)
	if got, text, _ := s.do("POST", right, nil, form); got != 409 || next.Err() != nil {
		t.Errorf("the second release: got %d %s, and the next hold is %v", got, text, next.Err())
	}
	_, frame, _ := s.do("GET", "/", nil, nil)
	s.Close()
	if all := all.String() + text + frame + s.log.String(); strings.Contains(all, token) {
		t.Error("the token is shown")
	} else if want := fmt.Sprintf("release %s: 200 OK\n", cli.Show(name)); !strings.Contains(all, want) {
		t.Errorf("want %q in\n%s", want, s.log.String())
	}
}

// TestServeWaitsForNoPage opens a page that does not read its stream, and a
// page that does.
func TestServeWaitsForNoPage(t *testing.T) {
	t.Parallel()
	d := memory.New(nil)
	b, _ := boardOf(t, d, time.Millisecond)
	s := serveSite(t, b, "")
	for i := range rowsOfPage - 1 {
		clitest.Lock(t, b.backend.Client, fmt.Sprint("held/", i, strings.Repeat("<", 900)))
	}
	silent, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_ = silent.(*net.TCPConn).SetReadBuffer(4096)
	if _, err := fmt.Fprintf(silent, "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return len(s.page.places) == 1 }, "the page that does not read has a place")
	e := s.open()
	for i := range 2 {
		name := fmt.Sprint("another/", i)
		l := clitest.Lock(t, b.backend.Client, name)
		e.awaitText("<td>" + name + "</td>")
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.await(func(html string) bool { return !strings.Contains(html, "<td>"+name+"</td>") })
	}
	testenv.Eventually(t, func() bool { return len(s.page.places) < 2 }, "the page that does not read is dropped")
	clitest.Lock(t, b.backend.Client, "another/2") // long after ReadTimeout, which applies to requests
	e.awaitText("<td>another/2</td>")
}

// TestServeHasPlaces opens more pages than there are places.
func TestServeHasPlaces(t *testing.T) {
	t.Parallel()
	b, _ := boardOf(t, memory.New(nil), time.Hour)
	s := serveSite(t, b, "")
	var last *events
	for range cap(s.page.places) {
		last = s.open()
	}
	if got, text, _ := s.do("GET", "/events", nil, nil); got != http.StatusServiceUnavailable {
		t.Errorf("got %d %s", got, text)
	}
	last.Close()
	testenv.Eventually(t, func() bool { return len(s.page.places) < cap(s.page.places) }, "a closed page frees its place")
	s.open()
}

func TestServeChecksItsFlags(t *testing.T) {
	secret, short := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "short")
	for file, text := range map[string]string{secret: testenv.Password(), short: testenv.PasswordMark} {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(tokenVariable, "")
	for _, test := range []struct{ args, want string }{
		{"a b", "one prefix"},
		{"--listen nonsense", "--listen"},
		{"--listen :0", "other machines"},
		{"--listen 0.0.0.0:0", "other machines"},
		{"--listen [::]:0", "other machines"},
		{"--listen 192.0.2.1:0", "other machines"},
		{"--listen 0.0.0.0:0 --host x --allow-release --token-file " + secret, "loopback"},
		{"--every 1ms", "--every"},
		{"--allow-release", "16 characters"},
		{"--allow-release --token-file " + short, "16 characters"},
		{"--allow-release --token-file /does/not/exist", "/does/not/exist"},
		{"--token-file " + secret, "--allow-release"},
	} {
		_, err := clitest.Run(drivertest.Guard(t), Command(), append([]string{"--url", "memory://flags"}, strings.Fields(test.args)...)...)
		if !errors.As(err, new(cli.UsageError)) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: got %v, want %q", test.args, err, test.want)
		}
	}
	for _, f := range []serveFlags{{listen: "localhost:0"}, {listen: "[::1]:0"}, {listen: "0.0.0.0:0", names: []string{"x"}}, {listen: "127.0.0.2:0", allow: true, file: secret}} {
		f.every = time.Second
		if err := f.check(); err != nil {
			t.Errorf("%+v: %v", f.listen, err)
		}
	}
}

// TestServe runs the whole command. The command shows a change and ends with
// its pages on request.
func TestServe(t *testing.T) {
	t.Parallel()
	const url = "memory://serve"
	c := clitest.Client(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe()
	var errs strings.Builder
	ended := make(chan error, 1)
	go func() { // ends when ctx ends
		c := Command()
		c.SetArgs([]string{"--url", url, "--listen", "127.0.0.1:0", "--every", "1s", "lk:"})
		c.SetOut(out)
		c.SetErr(&errs)
		ended <- c.ExecuteContext(ctx)
		out.Close()
	}()
	said := bufio.NewReader(in)
	line, err := said.ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	at, _, _ := strings.Cut(line, " shows "+url)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	e := openEvents(t, client, at+"events")
	e.awaitText("No name, as of")
	leader := dsync.With(c, dsync.Write())
	clitest.Lock(t, leader, "lk:leader")
	clitest.Lock(t, c, "other")
	if text := e.awaitText("<td>lk:leader</td>"); !strings.Contains(text, "<td>written</td>") || strings.Contains(text, "other") {
		t.Errorf("got\n%s", text)
	}
	cancel()
	if _, err := io.Copy(io.Discard, e.in); err != nil {
		t.Errorf("the page ended with %v", err)
	}
	if rest, err := io.ReadAll(said); err != nil || len(rest) > 0 {
		t.Errorf("got %q, %v", rest, err)
	}
	if err := <-ended; err != nil || errs.Len() > 0 {
		t.Errorf("got %v: %s", err, errs.String())
	}
}

// TestServeInABrowser opens the page, waits for it to change, and releases a
// lock on it.
func TestServeInABrowser(t *testing.T) {
	t.Parallel()
	d := memory.New(nil)
	b, _ := boardOf(t, d, 100*time.Millisecond)
	token := testenv.Password()
	s := serveSite(t, b, token)
	open := func(note string) *dsync.Client {
		c, err := dsync.New(d.Server().NewDriver(), &dsync.Options{Note: note})
		if err != nil {
			t.Fatal(err)
		}
		clitest.CloseLater(t, c)
		return c
	}
	const evil = `<img src=x onerror="document.title='run'">`
	night, shop := open("nightly run"), open("shop-3")
	lease := clitest.Lock(t, night, "orders/2026/11/23/customers/4711/invoice")
	clitest.Lock(t, open("http://10.0.0.7:8080/"), "planner")
	clitest.Lock(t, dsync.With(shop, dsync.Read()), "prices")
	waiting := drivertest.Request(lease.Name())
	waiting.Owner = "worker-9"
	waiter := drivertest.Wait(t, d.Server().NewDriver(), waiting)
	browser := testenv.Chromium(t, s.URL)
	has := func(text string) string {
		return fmt.Sprintf(`(document.querySelector("#locks table")?.innerText ?? "").includes(%q)`, text)
	}
	browser.Await(has("nightly run") + " && " + has("prices") + " && " + has("1: worker-9"))
	browser.Await(`document.querySelector("#age").innerText === "live"`)
	browser.Await(`performance.getEntriesByType("resource").length >= 2 && performance.getEntriesByType("resource").every(r => r.name.startsWith(location.origin + "/"))`)
	if picture := browser.Screenshot(); !bytes.HasPrefix(picture, []byte("\x89PNG")) {
		t.Errorf("the screenshot of %d bytes is not a PNG", len(picture))
	} else if *screenshot != "" {
		if err := os.WriteFile(*screenshot, picture, 0o644); err != nil {
			t.Error(err)
		}
	}
	browser.Phone()
	browser.Await(has("nightly run") + ` && innerWidth < 500 && document.documentElement.scrollWidth <= innerWidth`)
	clitest.Lock(t, shop, "odd \"name\"\n"+evil)
	browser.Await(has(strings.Trim(cli.Show(evil), `"`)[:8]) + ` && document.title.startsWith("Locks of") && document.images.length === 0`)
	late := clitest.Lock(t, shop, "late")
	browser.Await(has("late"))
	if err := late.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	browser.Await("!" + has("late") + ` && document.querySelector(".history").innerText.includes("late")`)
	browser.Await(fmt.Sprintf(`(() => {
		[...document.querySelectorAll("#locks tr")].find(r => r.innerText.includes(%q)).querySelector("button").click();
		const form = document.querySelector("#release form");
		form.token.value = %q;
		return document.querySelector("#what").innerText.includes("nightly run") && (form.querySelector("button").click(), true);
	})()`, lease.Name(), token))
	select {
	case <-lease.Done():
	case <-time.After(drivertest.HangGuard):
		t.Fatal("the lock was not released")
	}
	browser.Await(fmt.Sprintf(`document.querySelector("#result")?.innerText === %q`, lease.Name()+" was released."))
	drivertest.Release(t, waiter.Granted(t))
	if text := browser.Text(); strings.Contains(text, token) {
		t.Error("the token is shown")
	}
}
