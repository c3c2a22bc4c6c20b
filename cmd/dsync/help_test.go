package main

import (
	"strings"
	"testing"
)

func TestRefill(t *testing.T) {
	const text = `Ls lists the names that are held, of those that
begin with PREFIX.

  Redis       goes through all keys of the server, a hundred thousand
              in a second at most
  etcd        reads the keys

Exit status
    0  listed, also if nobody holds a name
  130  interrupted`
	const want = `Ls lists the names that are held, of
those that begin with PREFIX.

  Redis       goes through all keys of
              the server, a hundred
              thousand in a second at
              most
  etcd        reads the keys

Exit status
    0  listed, also if nobody holds a
       name
  130  interrupted`
	if got := refill(text, 40); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := strings.Fields(refill(text, 1000)), strings.Fields(text); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %q, want %q", got, want)
	}
}
