package bench

import (
	"slices"
	"testing"
)

func TestParseTicks(t *testing.T) {
	const stat = "cpu  30 0 10 110 10 0 0 0 0 0\ncpu0 10 0 5 50 5 0 0 0 0 0\ncpu1 20 0 5 60 5 0 1 0 0 0\nintr 5 0 0 0 1 1 14\n"
	want := []ticks{{55, 70}, {65, 91}}
	if got := parseTicks(stat); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAMachineIsIdleIfEachCPUIs(t *testing.T) {
	at := func(idle0, all0, idle1, all1 int64) []ticks { return []ticks{{idle0, all0}, {idle1, all1}} }
	before := at(100, 200, 300, 600)
	for _, test := range []struct {
		name          string
		before, after []ticks
		want          bool
	}{
		{"both are", before, at(140, 250, 326, 650), true},
		{"one is busy", before, at(150, 250, 320, 650), false},
		{"nothing is told", nil, nil, false},
		{"one has come", before, append(at(150, 250, 350, 650), ticks{}), false},
	} {
		if got := idle(test.before, test.after); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}
