package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestServeEndsByTERM ends a process while a page is open. The token is in the
// environment of the process.
func TestServeEndsByTERM(t *testing.T) {
	t.Parallel()
	token := testenv.Password()
	cmd, _, errs := testenv.Program(t, "serve", "--url", "redisson://"+testenv.Redis(t).Addr, "--listen", "127.0.0.1:0", "--allow-release")
	cmd.Env = append(cmd.Env, "DSYNC_RELEASE_TOKEN"+"="+token)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	at, _, _ := strings.Cut(line, " shows ")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	page, err := client.Get(at + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	if _, err := page.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, page.Body); err != nil {
		t.Errorf("the page ended with %v", err)
	}
	rest, err := io.ReadAll(said)
	if err != nil || cmd.Wait() != nil || errs.Len() > 0 {
		t.Errorf("got %v, %v, %q", err, cmd.ProcessState, errs)
	}
	if strings.Contains(line+string(rest), token) {
		t.Error("the token is shown")
	}
}
