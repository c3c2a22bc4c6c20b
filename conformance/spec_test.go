package conformance

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite SPEC.md")

func TestSpec(t *testing.T) {
	var b strings.Builder
	b.WriteString("# What a driver promises\n\nEach line is one check of package conformance, in the order in which it runs them.\n")
	last, seen, inModes := "", map[string]bool{}, []string(nil)
	for _, c := range allChecks() {
		group, name, ok := strings.Cut(c.Name, "/")
		if !ok || seen[c.Name] || !strings.HasSuffix(c.Promise, ".") {
			t.Errorf("check %q: want a unique name group/name, and a promise that is a sentence, got %q", c.Name, c.Promise)
		}
		seen[c.Name] = true
		if strings.Contains(name, "/") { // a listed check, in another mode
			inModes = append(inModes, c.Name)
			continue
		}
		if group != last {
			fmt.Fprintf(&b, "\n## %s\n\n", group)
			last = group
		}
		fmt.Fprintf(&b, "- **%s**: %s\n", name, c.Promise)
	}
	for name := range alone {
		if !seen[name] {
			t.Errorf("%q, which must run alone, is not a check", name)
		}
	}
	b.WriteString("\n## In the modes Read, Write and Permit\n\nThe same promises apply to requests in these modes:\n\n")
	for _, name := range inModes {
		fmt.Fprintf(&b, "- %s\n", name)
	}
	got := b.String()
	if *update {
		if err := os.WriteFile("SPEC.md", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("SPEC.md does not list the checks; `go test ./conformance -run Spec -update` rewrites it. Want:\n%s", got)
	}
}
