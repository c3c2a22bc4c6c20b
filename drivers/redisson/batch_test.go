package redisson

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// together executes ops by one request.
func together(d *Driver, ops ...*op) {
	for _, o := range ops {
		o.state.Store(taken)
		d.direct.busy.Add(1)
	}
	d.sender.sendTogether(&batch{ops: ops})
	for _, o := range ops {
		<-o.done
	}
}

// TestCombinedRequestKeepsOpsApart combines releases and acquires of all kinds
// in one request. No two of them have the same terms.
func TestCombinedRequestKeepsOpsApart(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	held := acquire(t, d, request("held"))
	forms := []string{"a%d", "{t}%d", "b{%d", "c}%d"}
	var acquires []*op
	for i := range 12 {
		r := request(fmt.Sprintf(forms[i%len(forms)], i))
		r.TTL = time.Duration(10+i/2) * time.Second
		r.Note = strconv.Itoa(i / 3)
		o := d.newOp(r, nil)
		o.tokens = 1 + i%3
		o.marks = i%5 == 0
		if i%4 == 1 {
			o.turn = "0"
		}
		if o.marks {
			s.Do("SET", prefixName(markPrefix, r.Name), "1")
		}
		acquires = append(acquires, o)
	}
	refused := d.newOp(request("held"), nil)
	refused.tokens, refused.turn = 1, "0"
	missing := d.newOp(request("missing"), &lease{})
	wrong := d.newOp(request("wrong"), nil)
	wrong.tokens = 1
	s.Do("SET", "wrong", "no hash")
	together(d, slices.Insert(slices.Clone(acquires), 6, refused, missing, wrong)...)

	for i, o := range acquires {
		r := o.request
		if o.err != nil || o.value < 1 || o.n != o.tokens && o.n != 1 || o.marked != o.marks {
			t.Errorf("%s: got %d tokens from %d, moved %v, %v; want up to %d tokens, moved %v", r.Name, o.n, o.value, o.marked, o.err, o.tokens, o.marks)
		}
		if ttl := time.Duration(s.Do("PTTL", r.Name).(int64)) * time.Millisecond; ttl > r.TTL || ttl < r.TTL-time.Second {
			t.Errorf("%s: got a TTL of %v, want %v", r.Name, ttl, r.TTL)
		}
		if last, _ := strconv.ParseInt(s.Do("GET", d.tokenKey(r.Name)).(string), 10, 64); last < o.value+int64(o.n)-1 { // other names share it
			t.Errorf("%s: got %d as the last token, want at least %d", r.Name, last, o.value+int64(o.n)-1)
		}
		if got, want := s.Do("HGET", r.Name, r.Hold), fmt.Sprintf("#%d\n%s\n%s\n%d", o.value+int64(o.n)-1, r.Owner, process, i/3); got != want {
			t.Errorf("%s: got %q for the hold, want %q", r.Name, got, want)
		}
	}
	if refused.err != nil || refused.code != heldCode || refused.place.Ticket == 0 {
		t.Errorf("held by another client: got %q, ticket %d, %v; want a refusal with a ticket", refused.code, refused.place.Ticket, refused.err)
	}
	if missing.err != nil || missing.value != -1 {
		t.Errorf("release without a hold: got %d, %v, want -1", missing.value, missing.err)
	}
	if wrong.err == nil || !strings.Contains(wrong.err.Error(), "WRONGTYPE") {
		t.Errorf("a key that is no lock: got %v, want WRONGTYPE", wrong.err)
	}

	var releases []*op
	var spies []*spy
	for _, o := range acquires {
		releases = append(releases, d.newOp(o.request, &lease{}))
		spies = append(spies, spyOn(t, s, prefixName(channelPrefix, o.request.Name)))
	}
	bare := d.newOp(request("bare"), nil) // without tokens
	together(d, slices.Insert(slices.Clone(releases), 5, bare)...)
	for i, o := range releases {
		if o.err != nil || o.value != 1 || s.Do("EXISTS", o.request.Name) != int64(0) {
			t.Errorf("%s: release: got %d, %v, want one notified client", o.request.Name, o.value, o.err)
		}
		if got := spies[i].next(t); got != "0" {
			t.Errorf("%s: message: got %q, want 0", o.request.Name, got)
		}
	}
	if bare.err != nil || bare.value != 1 || s.Do("HGET", "bare", bare.request.Hold) != "1" {
		t.Errorf("without tokens: got %d, %v, want 1, and the value 1 for the hold", bare.value, bare.err)
	}
	release(t, held)
}
