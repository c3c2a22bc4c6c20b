package driver_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
)

func TestURLRestIsWhatNobodyAskedFor(t *testing.T) {
	u, err := driver.ParseURL("x://h?mine=1&theirs=a%20b&other=")
	if err != nil {
		t.Fatal(err)
	}
	if got := u.Param("mine", ""); got != "1" {
		t.Errorf("Param: got %q, want 1", got)
	}
	got, want := u.Rest(), map[string]string{"theirs": "a b", "other": ""}
	if !maps.Equal(got, want) {
		t.Errorf("Rest: got %v, want %v", got, want)
	}
	if err := u.Err(); err != nil {
		t.Errorf("Err after Rest: got %v, want nil", err)
	}
	if got := u.Rest(); len(got) != 0 {
		t.Errorf("second Rest: got %v, want none", got)
	}
}

func TestURLRestRefusesAParameterGivenTwice(t *testing.T) {
	u, err := driver.ParseURL("x://h?theirs=1&theirs=2")
	if err != nil {
		t.Fatal(err)
	}
	u.Rest()
	if err := u.Err(); err == nil || !strings.Contains(err.Error(), "theirs") {
		t.Errorf("Err: got %v, want an error that names theirs", err)
	}
}
