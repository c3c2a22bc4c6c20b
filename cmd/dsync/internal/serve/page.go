package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/admin"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

//go:embed web
var web embed.FS

var templates = template.Must(template.ParseFS(web, "web/*.html"))

// page is the web page of `dsync serve`.
type page struct {
	board  *board
	hosts  map[string]bool // the host names by which browsers may call this server
	token  string          // secret for releases; "" disables them
	log    *log.Logger     // the log of releases
	places chan struct{}   // has an element for each open page
	over   context.Context // ends the streams
}

// headers stop a page from loading anything from other sites, from running
// inline scripts, and from being framed. The last header keeps the header
// Origin in the requests of forms.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; " +
		"base-uri 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cache-Control":                "no-store",
	"Referrer-Policy":              "same-origin",
}

func (p *page) handler() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /{$}", p.frame)
	routes.HandleFunc("GET /events", p.stream)
	for _, file := range []string{"style.css", "script.js"} {
		routes.HandleFunc("GET /"+file, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, web, "web/"+file) })
	}
	if p.token != "" {
		routes.HandleFunc("POST /release", p.release)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		switch {
		case !p.hosts[hostOf(r.Host)]:
			http.Error(w, "this server has another name: see --host of dsync serve", http.StatusMisdirectedRequest)
		case fromElsewhere(r):
			http.Error(w, "requests from pages of other sites are refused", http.StatusForbidden)
		default:
			routes.ServeHTTP(w, r)
		}
	})
}

// hostOf returns the host in a Host header, without its port.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// fromElsewhere reports whether a browser sends a request on behalf of another
// site's page. Such a page may only link to this page.
func fromElsewhere(r *http.Request) bool {
	if new(http.CrossOriginProtection).Check(r) != nil {
		return true
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.URL.Path != "/"
}

// frame writes the page around the locks. The script gets the locks from
// stream.
func (p *page) frame(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = templates.ExecuteTemplate(w, "page.html", map[string]any{
		// An error means that the client is gone.
		"URL": p.board.backend.URL.String(), "Prefix": p.board.prefix, "Find": r.FormValue("find"), "Release": p.token != "",
	})
}

// stream sends the content of a page as server-sent events whenever it has
// changed. It waits for the browser to read, without delaying other pages.
func (p *page) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	default:
		http.Error(w, fmt.Sprintf("%d pages are open, which is the limit", cap(p.places)), http.StatusServiceUnavailable)
		return
	}
	v := view{r.FormValue("find"), r.FormValue("from")}
	defer p.board.join(v)()
	w.Header().Set("Content-Type", "text/event-stream")
	conn := http.NewResponseController(w)
	for sent := (*posted)(nil); ; {
		now, changed := p.board.look(v)
		if sent == nil || *sent != now {
			_ = conn.SetWriteDeadline(time.Now().Add(writePatience))
			_, err := w.Write(p.event(v, now))
			if err == nil {
				err = conn.Flush()
			}
			if err != nil {
				return
			}
			sent = &now
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-p.over.Done():
			return
		}
	}
}

// event returns the locks of a view as HTML in a JSON string, because any line
// break ends a line of an event.
func (p *page) event(v view, now posted) []byte {
	shown := map[string]any{"Find": v.find, "Problem": now.problem, "Sheet": nil, "Release": p.token != ""}
	if !now.last.IsZero() {
		shown["Last"] = now.last.Format("2006-01-02 15:04:05 MST")
	}
	if s := now.sheet; s != nil {
		shown["Sheet"] = map[string]any{"First": s.first, "Last": s.last, "Total": s.total, "More": s.more, "Prev": s.prev, "Next": s.next}
		shown["Head"], shown["Rows"] = pageRows(s.reports)
		shown["History"] = s.history
	}
	var html, event bytes.Buffer
	if err := templates.ExecuteTemplate(&html, "locks.html", shown); err != nil {
		// All pages use the same template and kinds of values, so tests would
		// have found an error.
		html.Reset()
	}
	event.WriteString("data: ")
	line := json.NewEncoder(&event)
	line.SetEscapeHTML(false)
	_ = line.Encode(html.String())
	event.WriteByte('\n')
	return event.Bytes()
}

// pageRow is a row of the table, and the hold that its button releases.
type pageRow struct {
	Cells       []string
	Name, Grant string
}

// pageRows returns the rows of `ls --long`, with queues and without empty
// columns.
func pageRows(reports []admin.Report) (head []string, rows []pageRow) {
	table := admin.Rows(reports)
	for i := range reports {
		table[i+1][admin.WaitersColumn] = reports[i].WhoWaits()
	}
	widths := cli.ColumnsOf(table, true)
	for i, line := range table {
		var cells []string
		for column, cell := range line {
			if widths[column] > 0 {
				cells = append(cells, cell)
			}
		}
		if i == 0 {
			head = cells
			continue
		}
		rows = append(rows, pageRow{cells, reports[i-1].Name, reports[i-1].Grant()})
	}
	return head, rows
}

// mayRelease reports whether the body of a request has the token. It compares
// in constant time.
func (p *page) mayRelease(w http.ResponseWriter, r *http.Request) bool {
	r.Body = http.MaxBytesReader(w, r.Body, 4096)
	given, wanted := sha256.Sum256([]byte(r.PostFormValue("token"))), sha256.Sum256([]byte(p.token))
	return subtle.ConstantTimeCompare(given[:], wanted[:]) == 1
}

// release ends the hold that a page displayed.
func (p *page) release(w http.ResponseWriter, r *http.Request) {
	name, grant := r.URL.Query().Get("name"), r.URL.Query().Get("grant")
	status, text := http.StatusForbidden, "The token is wrong. Nothing was released."
	if p.mayRelease(w, r) {
		ctx, cancel := context.WithTimeout(r.Context(), askPatience)
		defer cancel()
		err := admin.Release(ctx, p.board.backend, name, func(now *admin.Report) error {
			if now.Grant() != grant {
				return cli.Unfinished("%s: another client holds it now: nothing was released", cli.Show(name))
			}
			return nil
		})
		status, text = http.StatusOK, cli.Show(name)+" was released."
		switch {
		case errors.As(err, new(cli.UnfinishedError)):
			status = http.StatusConflict
		case errors.Is(err, errors.ErrUnsupported):
			status = http.StatusNotImplemented
		case err != nil:
			status = http.StatusBadGateway
		}
		if err != nil {
			text = cli.Printable(err.Error())
		}
	}
	p.log.Printf("%s  %s  release %s: %d %s", time.Now().Format(time.RFC3339), r.RemoteAddr, cli.Show(name), status, http.StatusText(status))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = templates.ExecuteTemplate(w, "result.html", text) // an error means that the client is gone
}
