package testenv

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Browser is a headless Chromium that shows one page. It uses the DevTools
// protocol: JSON messages over two pipes, each followed by a zero byte.
type Browser struct {
	tb      testing.TB
	proc    *process
	in, out *os.File
	answers *bufio.Reader
	session string
	last    int
}

// Chromium opens the page of a URL and returns when it is loaded.
func Chromium(tb testing.TB, url string) *Browser {
	tb.Helper()
	dir := memoryDir(tb)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	theirIn, in := pipe(tb)
	out, theirOut := pipe(tb)
	cmd := exec.Command(need(tb, "chromium", "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--window-size=800,450", "--user-data-dir="+dir, "--remote-debugging-pipe")
	// the file descriptors 3 and 4, as the flag requires
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Stderr = log
	proc, err := startProcess(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &Browser{tb: tb, proc: proc, in: in, out: out, answers: bufio.NewReader(out)}
	tb.Cleanup(b.close)
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	b.call("Page.enable", nil, nil)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	for event := ""; event != "Page.loadEventFired"; {
		message, err := b.read()
		if err != nil {
			tb.Fatal(err)
		}
		event = message.Method
	}
	return b
}

// Await waits until a JavaScript expression is true in the page, or in a page
// that replaces it in the meantime.
func (b *Browser) Await(expression string) {
	b.tb.Helper()
	expression = `new Promise(done => { const look = () => ` + expression + ` ? done("") : setTimeout(look, 10); look() })`
	for {
		_, err := b.tryEval(expression)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "navigated") {
			b.tb.Fatal(err)
		}
	}
}

// Text returns the visible text of the page.
func (b *Browser) Text() string {
	b.tb.Helper()
	return b.eval("document.body.innerText")
}

func (b *Browser) eval(expression string) string {
	b.tb.Helper()
	value, err := b.tryEval(expression)
	if err != nil {
		b.tb.Fatal(err)
	}
	return value
}

func (b *Browser) tryEval(expression string) (string, error) {
	var answer struct {
		Result           struct{ Value string }
		ExceptionDetails json.RawMessage
	}
	err := b.try("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer)
	if err == nil && answer.ExceptionDetails != nil {
		err = errors.New(string(answer.ExceptionDetails))
	}
	if err != nil {
		return "", fmt.Errorf("chromium: %s: %w", expression, err)
	}
	return answer.Result.Value, nil
}

// Screenshot returns the page as a PNG.
func (b *Browser) Screenshot() []byte {
	b.tb.Helper()
	var answer struct{ Data string }
	b.call("Page.captureScreenshot", nil, &answer)
	png, err := base64.StdEncoding.DecodeString(answer.Data)
	if err != nil {
		b.tb.Fatal(err)
	}
	return png
}

// devMessage is a response or an event.
type devMessage struct {
	ID     int
	Method string // name of an event
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Phone gives the page the screen of a phone.
func (b *Browser) Phone() {
	b.tb.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true}, nil)
}

// call sends a request and waits for its response.
func (b *Browser) call(method string, params map[string]any, result any) {
	b.tb.Helper()
	if err := b.try(method, params, result); err != nil {
		b.tb.Fatalf("chromium: %s: %v", method, err)
	}
}

func (b *Browser) try(method string, params map[string]any, result any) error {
	b.last++
	request := map[string]any{"id": b.last, "method": method}
	if params != nil {
		request["params"] = params
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		return err
	}
	for {
		message, err := b.read()
		if err != nil || message.ID != b.last {
			if err != nil {
				return err
			}
			continue
		}
		if message.Error != nil {
			return errors.New(message.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(message.Result, result)
	}
}

// read waits for a message.
func (b *Browser) read() (m devMessage, err error) {
	if err = b.out.SetReadDeadline(time.Now().Add(hangGuard)); err != nil {
		return m, err
	}
	text, err := b.answers.ReadBytes(0)
	if err != nil {
		return m, fmt.Errorf("no response from Chromium: %w", err)
	}
	return m, json.Unmarshal(text[:len(text)-1], &m)
}

// close requests the end of the browser with all of its processes and returns
// when it has ended.
func (b *Browser) close() {
	b.session = ""
	if err := b.try("Browser.close", nil, nil); err == nil {
		select {
		case <-b.proc.done:
		case <-time.After(10 * time.Second):
		}
	}
	b.proc.kill()
}
