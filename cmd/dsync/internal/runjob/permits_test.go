package runjob

import (
	"testing"
)

func TestPermitsFlag(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]permits{"2/8": {2, 8}, "1/1": {1, 1}, "3/0": {3, 0}} {
		var p permits
		if err := p.Set(text); err != nil || p != want || p.String() != text {
			t.Errorf("%s: got %v and %v", text, p, err)
		}
	}
	for _, text := range []string{"", "/", "8", "2/", "/8", "0/8", "-1/8", "2/-8", "9/8", "a/b", "2/8/9", "1e3/8", "99999999999999999999/8"} {
		var p permits
		if err := p.Set(text); err == nil || p.asked() {
			t.Errorf("%q: got %v, want an error", text, p)
		}
	}
}
