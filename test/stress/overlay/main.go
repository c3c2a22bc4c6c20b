// Overlay prepares a build whose wall clock can jump. It writes a copy of package time to a directory in which Now adds time.WallOffset, a
// number of seconds, to the wall clock and leaves the monotonic clock alone, and prints the flags for go test.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	const now, clock = "func Now() Time {\n", "\tsec, nsec, mono := runtimeNow()\n"
	before, after, ok := strings.Cut(string(text), now)
	body, rest, ok2 := strings.Cut(after, clock)
	if !ok || !ok2 || strings.Contains(body, "\n}\n") {
		return fmt.Errorf("%s: Now is not as expected: how it reads the clock has changed", original)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	changed := filepath.Join(dir, "time.go")
	source := before + "// WallOffset is added to the wall clock, in seconds.\nvar WallOffset int64\n\n" + now + body + clock + "\tsec += WallOffset\n" + rest
	if err := os.WriteFile(changed, []byte(source), 0o644); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		return err
	}
	fmt.Printf("-overlay=%s -tags=wallclock\n", file)
	return nil
}
