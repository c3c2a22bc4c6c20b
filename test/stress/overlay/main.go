// Overlay prepares a build whose clocks can jump. It writes modified copies of
// two files to a directory and prints the flags for go test. In package time,
// Now adds time.WallOffset, in seconds, to the wall clock, and does not change
// the monotonic clock. In package internal/clock, the machine seems to have
// slept longer by time.SleepOffset, also in seconds.
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
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	replace := map[string]string{}
	for _, change := range []struct {
		goTool []string // tells the directory
		file   string
		edit   func(text string) (string, bool)
	}{
		{[]string{"env", "GOROOT"}, "src/time/time.go", wallClock},
		{[]string{"list", "-m", "-f", "{{.Dir}}", "github.com/go-dsync/dsync"}, "internal/clock/clock_linux.go", sleepClock},
	} {
		root, err := exec.Command("go", change.goTool...).Output()
		if err != nil {
			return err
		}
		original := filepath.Join(strings.TrimSpace(string(root)), change.file)
		text, err := os.ReadFile(original)
		if err != nil {
			return err
		}
		changed, ok := change.edit(string(text))
		if !ok {
			return fmt.Errorf("%s is not as expected: how it reads the clock has changed", original)
		}
		replace[original] = filepath.Join(dir, filepath.Base(change.file))
		if err := os.WriteFile(replace[original], []byte(changed), 0o644); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
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

// wallClock changes package time.
func wallClock(text string) (string, bool) {
	const now, clock = "func Now() Time {\n", "\tsec, nsec, mono := runtimeNow()\n"
	before, after, ok := strings.Cut(text, now)
	body, rest, ok2 := strings.Cut(after, clock)
	return before + "// WallOffset is added to the wall clock, SleepOffset to the time for which the machine has slept, in seconds.\n" +
		"var WallOffset, SleepOffset int64\n\n" + now + body + clock + "\tsec += WallOffset\n" + rest, ok && ok2 && !strings.Contains(body, "\n}\n")
}

// sleepClock changes package internal/clock.
func sleepClock(text string) (string, bool) {
	const asleep = "func asleep() (time.Duration, bool) {\n"
	before, after, ok := strings.Cut(text, asleep)
	return before + asleep + "\tslept, ok := asleepForTrue()\n\treturn slept + time.Duration(time.SleepOffset)*time.Second, ok\n}\n\n" +
		strings.Replace(asleep, "asleep", "asleepForTrue", 1) + after, ok
}
