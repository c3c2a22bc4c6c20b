package agent

import "testing"

func TestBefore(t *testing.T) {
	for _, c := range []struct {
		version, other string
		want           bool
	}{
		{"3.27.2", "3.28.0", true},
		{"3.28.0", "3.28.0", false},
		{"3.9.9", "3.28.0", true},
		{"4.0.0", "3.28.0", false},
		{"3.100.0", "3.28.0", false},
		{"3.19.0", "3.19.1", true},
	} {
		if got := Before(c.version, c.other); got != c.want {
			t.Errorf("%s before %s: got %v, want %v", c.version, c.other, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for version, want := range map[string]bool{Old: true, Middle: true, New: true, "3.18.1": false, "4.2": false, "latest": false, "": false,
		"../4.2.0": false, "4.2.0-SNAPSHOT": false} {
		if err := check(version); (err == nil) != want {
			t.Errorf("check(%q): got %v, want acceptance: %v", version, err, want)
		}
	}
}

// TestUnpublished uses the output of Maven 3.8 for the first attempt and for
// later attempts.
func TestUnpublished(t *testing.T) {
	for out, want := range map[string]bool{
		"Could not find artifact org.redisson:redisson:jar:9.9.9 in central (https://repo.maven.apache.org/maven2)":                     true,
		"org.redisson:redisson:jar:9.9.9 was not found in https://repo.maven.apache.org/maven2 during a previous attempt.":              true,
		"Could not transfer artifact org.redisson:redisson:pom:9.9.9 from/to central (https://repo.maven.apache.org/maven2): timed out": false,
		"Could not find artifact io.netty:netty-common:jar:9.9.9 in central":                                                            false,
	} {
		if got := unpublished("9.9.9", []byte(out)); got != want {
			t.Errorf("%q: got %v, want %v", out, got, want)
		}
	}
}
