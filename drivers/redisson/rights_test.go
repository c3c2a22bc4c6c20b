package redisson

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// leastRights returns the rights that docs/backends lists for names that begin
// with "lk:", with the rows of the table there.
func leastRights(tb testing.TB, rows ...string) []string {
	tb.Helper()
	words := strings.Fields(drivertest.Recipe(tb, "**Redis, `redisson://`**"))
	rights := words[slices.Index(words, "resetkeys"):]
	for _, row := range rows {
		rights = append(rights, drivertest.RecipeRow(tb, row)...)
	}
	return rights
}

// given are the rights that the server gives every user.
var given = []string{"+hello", "+auth"}

// quiet are rights without which nothing fails: waiters try now and then, or
// all together, and the library accepts any answer to a ping.
var quiet = []string{"+ping", "+subscribe", "~dsync_turn:{lk:*", "+hmget"}

// TestEachRightIsNeeded removes one of the rights at a time, and then does
// everything that they are for.
func TestEachRightIsNeeded(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	after := &afterwards{t: t}
	base := leastRights(t)
	for _, test := range []struct {
		name, parameters string
		rows             []string
		do               func(u *uses)
	}{
		{"locks", "", nil, (*uses).locks},
		{"fair locks", "fair=true", []string{"`fair=true`"}, (*uses).fairLocks},
		{"read-write locks", "", []string{"`Read`, `Write`"}, (*uses).readWriteLocks},
		{"tokens of Redisson", "fence=redisson", []string{"`fence=redisson`"}, (*uses).locks},
		{"permits", "", []string{"`Permits`"}, (*uses).permits},
		{"admin", "", []string{"`Read`, `Write`", "`Inspect`, `ForceUnlock`"}, (*uses).admin},
		{"list", "", []string{"`List`"}, (*uses).list},
		{"latches", "", []string{"`Latch`"}, (*uses).latches},
		{"migration", "", []string{"migration from it", "migration to it", "migration back"}, (*uses).migration},
	} {
		rights := leastRights(t, test.rows...)
		candidates := rights
		if test.rows != nil {
			candidates = rights[len(base):]
		}
		t.Run(test.name, func(t *testing.T) {
			u := newUses(t, s, after, test.parameters, rights)
			if test.do(u); len(u.errs) > 0 {
				t.Fatalf("with all rights: got %v", errors.Join(u.errs...))
			}
			for _, right := range candidates {
				if strings.HasPrefix(right, "reset") || right == "-@all" || slices.Contains(given, right) {
					continue
				}
				t.Run(right, func(t *testing.T) {
					if right != "+eval" { // which is needed if no user has run the script before
						t.Parallel()
					}
					u := newUses(t, s, after, test.parameters, slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right }))
					test.do(u)
					u.wantDenied(right)
				})
			}
		})
	}
	after.run()
}

// uses records the errors of a user's calls.
type uses struct {
	t     *testing.T
	s     *testenv.RedisServer
	after *afterwards
	user  string
	url   string
	name  string // of a lock that no other client holds
	errs  []error
}

var users atomic.Int64

// afterwards closes the drivers of all cases together, since each waits for the
// TTL if a script was stopped half-way.
type afterwards struct {
	t    *testing.T
	mu   sync.Mutex
	todo []func()
}

func (a *afterwards) add(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.todo = append(a.todo, f)
}

func (a *afterwards) run() {
	var all sync.WaitGroup
	for _, f := range a.todo {
		all.Go(f)
	}
	all.Wait()
}

// newUses makes a user with some rights on a server that keeps no script.
func newUses(t *testing.T, s *testenv.RedisServer, after *afterwards, parameters string, rights []string) *uses {
	t.Helper()
	user, password := fmt.Sprintf("user%d", users.Add(1)), testenv.Password()
	s.Do(append([]string{"ACL", "SETUSER", user, "on", ">" + password}, rights...)...)
	s.Do("SCRIPT", "FLUSH")
	return &uses{t: t, s: s, after: after, user: user, url: fmt.Sprintf("redisson://%s:%s@%s?%s", user, password, s.Addr, parameters), name: "lk:" + user}
}

// note reports whether there was no error.
func (u *uses) note(what string, err error) bool {
	if err != nil && !errors.Is(err, driver.ErrLocked) {
		u.errs = append(u.errs, fmt.Errorf("%s: %w", what, err))
	}
	return err == nil
}

func (u *uses) open() *Driver {
	d, err := tryOpen(u.t, u.url)
	if u.note("open", err) {
		u.after.add(func() {
			u.s.Do("ACL", "SETUSER", u.user, "allkeys", "allchannels", "+@all") // otherwise it cannot end its holds
			if err := d.Close(u.after.t.Context()); err != nil {
				u.after.t.Errorf("Close: %v", err)
			}
		})
	}
	return d
}

// shortly returns a request with a TTL for which Close can wait, as it does if
// a script was stopped half-way.
func shortly(name string) *driver.Request {
	r := request(name)
	r.TTL = 2 * time.Second
	return r
}

func (u *uses) acquire(d *Driver, name string) *lease {
	r := shortly(name)
	r.Events.(*events).tokens = 2
	l, err := d.Acquire(u.t.Context(), r)
	if !u.note("Acquire", err) {
		return nil
	}
	return l.(*lease)
}

// locks acquires a lock, waits for it, renews it and releases it.
func (u *uses) locks() {
	a, b := u.open(), u.open()
	if a == nil || b == nil {
		return
	}
	l := u.acquire(a, u.name)
	if l == nil {
		return
	}
	w := begin(b, shortly(u.name))
	select {
	case <-w.events.waiting:
	case <-w.done:
	}
	u.note("Renew", l.Renew(u.t.Context(), testTTL))
	u.note("Release", l.Release(u.t.Context()))
	if <-w.done; u.note("Acquire after a wait", w.err) {
		u.note("Release", w.lease.Release(u.t.Context()))
	}
}

// readWriteLocks reads while a writer waits for the lock, and renews and
// releases it.
func (u *uses) readWriteLocks() {
	a, b := u.open(), u.open()
	if a == nil || b == nil {
		return
	}
	l, err := a.Acquire(u.t.Context(), inMode(driver.Read, shortly(u.name)))
	if !u.note("Acquire to read", err) {
		return
	}
	w := begin(b, inMode(driver.Write, shortly(u.name)))
	select {
	case <-w.events.waiting:
	case <-w.done:
	}
	u.note("Renew", l.Renew(u.t.Context(), 2*time.Second))
	u.note("Release", l.Release(u.t.Context()))
	if <-w.done; u.note("Acquire to write", w.err) {
		u.note("Release", w.lease.Release(u.t.Context()))
	}
}

// permits sets a limit, acquires permits, waits for one, renews and releases,
// inspects them and removes them.
func (u *uses) permits() {
	a, b := u.open(), u.open()
	if a == nil || b == nil {
		return
	}
	ctx := u.t.Context()
	u.note("SetLimit", a.SetLimit(ctx, u.name, 2))
	u.s.Do("ZADD", endsKey(u.name), "1", "that of the dead") // and has expired
	u.s.Do("SET", u.name, "1")
	l, err := a.Acquire(ctx, permits(2, 2, shortly(u.name)))
	if !u.note("Acquire of permits", err) {
		return
	}
	u.note("SetLimit", a.SetLimit(ctx, u.name, 2))
	w := begin(b, permits(1, 2, shortly(u.name)))
	select {
	case <-w.events.waiting:
	case <-w.done:
	}
	u.note("Renew", l.Renew(ctx, 2*time.Second))
	u.note("Release", l.Release(ctx))
	if <-w.done; !u.note("Acquire of a permit after a wait", w.err) {
		return
	}
	u.note("Renew", w.lease.Renew(ctx, 2*time.Second))
	u.note("Release", w.lease.Release(ctx))
	other := u.name + "/other" // whose limit comes with a grant
	if l, err := a.Acquire(ctx, permits(1, 1, shortly(other))); u.note("Acquire of a permit", err) {
		u.note("Release", l.Release(ctx))
	}
}

// fairLocks is like locks, but with other waiters in the queue: a dead waiter,
// and a waiter that is evicted and comes back.
func (u *uses) fairLocks() {
	d := u.open()
	if d == nil {
		return
	}
	l := u.acquire(d, u.name)
	if l == nil {
		return
	}
	queue, times := prefixName(queuePrefix, u.name), prefixName(timesPrefix, u.name)
	first, last := shortly(u.name), shortly(u.name)
	var waiters []*waiter
	for _, r := range []*driver.Request{first, last} {
		w := begin(d, r)
		select {
		case <-w.events.waiting:
		case <-w.done:
			u.note("Acquire of a lock that is taken", w.err)
			return
		}
		waiters = append(waiters, w)
	}
	channel := prefixName(channelPrefix, u.name) + ":" + first.Hold
	firstFails := func() bool {
		select {
		case <-waiters[0].done:
			return true
		default:
			return false
		}
	}
	testenv.Eventually(u.t, func() bool { return u.s.SubscriberCount(channel) == 1 || firstFails() }, "the first waiter listens, or fails")
	u.s.Do("LREM", queue, "0", first.Hold)
	u.s.Do("ZREM", times, first.Hold)
	u.s.Do("PUBLISH", channel, "0")
	testenv.Eventually(u.t, func() bool { return firstFails() || u.s.Do("LPOS", queue, first.Hold) == int64(0) },
		"the evicted waiter is back, or fails")
	u.s.Do("LPUSH", queue, "dead")
	u.s.Do("ZADD", times, "1", "dead")
	u.note("Release", l.Release(u.t.Context()))
	for i, w := range waiters {
		if <-w.done; u.note(fmt.Sprint("Acquire of waiter ", i), w.err) {
			u.note("Release", w.lease.Release(u.t.Context()))
		}
	}
}

// list lists names when there is a lock.
func (u *uses) list() {
	d := u.open()
	if d == nil {
		return
	}
	l := u.acquire(d, u.name)
	if l == nil {
		return
	}
	var names []string
	for name, err := range d.List(u.t.Context(), u.name) {
		if u.note("List", err) {
			names = append(names, name)
		}
	}
	if len(u.errs) == 0 && !slices.Equal(names, []string{u.name}) {
		u.t.Errorf("List: got %q, want %q", names, u.name)
	}
	u.note("Release", l.Release(u.t.Context()))
}

// admin inspects and removes a lock and a read-write lock that is read.
func (u *uses) admin() {
	d := u.open()
	if d == nil || u.acquire(d, u.name) == nil {
		return
	}
	_, err := d.Inspect(u.t.Context(), u.name)
	u.note("Inspect", err)
	u.note("ForceUnlock", d.ForceUnlock(u.t.Context(), u.name))
	if _, err := d.Acquire(u.t.Context(), inMode(driver.Read, shortly(u.name))); u.note("Acquire to read", err) {
		_, err := d.Inspect(u.t.Context(), u.name)
		u.note("Inspect", err)
		u.note("ForceUnlock", d.ForceUnlock(u.t.Context(), u.name))
	}
}

// latches sets a latch, counts it down, and reads it.
func (u *uses) latches() {
	d := u.open()
	if d == nil {
		return
	}
	ctx := u.t.Context()
	_, err := d.SetLatch(ctx, u.name, "set", 2)
	u.note("SetLatch", err)
	for _, id := range []string{"first", "last"} {
		u.note("CountDown", d.CountDown(ctx, u.name, id))
	}
	_, err = d.Latch(ctx, u.name)
	u.note("Latch", err)
}

// migration seals and unseals a name, and marks and unmarks another one.
func (u *uses) migration() {
	d := u.open()
	if d == nil {
		return
	}
	ctx := u.t.Context()
	l := u.acquire(d, u.name)
	if l == nil {
		return
	}
	u.note("Seal", d.Seal(ctx, l))
	_, _, err := d.Sealed(ctx, u.name)
	u.note("Sealed", err)
	u.note("Loosen", d.Loosen(ctx, u.name, "id", 0))
	u.note("Unseal", d.Unseal(ctx, u.name, "id"))

	here := u.name + "/here"
	if l = u.acquire(d, here); l == nil {
		return
	}
	_, err = d.Marked(ctx, l)
	u.note("Marked", err)
	u.note("Mark", d.Mark(ctx, l, 1))
	u.note("Unmark", d.Unmark(ctx, l))
	u.note("Release", l.Release(ctx))
}

// wantDenied fails the test unless an error reports that this right is missing.
func (u *uses) wantDenied(right string) {
	u.t.Helper()
	all := errors.Join(u.errs...)
	command := strings.TrimPrefix(right, "+")
	if slices.Contains(quiet, right) {
		if key, ok := strings.CutPrefix(right, "~"); ok {
			command = strings.Replace(key, "lk:*", u.name+"}", 1)
		}
		testenv.Eventually(u.t, func() bool { return u.refused(command) }, "the server notes that it has refused "+command)
		if all != nil {
			u.t.Errorf("got %v, want no failure", all)
		}
		return
	}
	for _, err := range u.errs {
		text := strings.ToLower(err.Error())
		named := strings.Contains(text, command)
		switch right[0] {
		case '~':
			named = strings.Contains(text, "key")
		case '&':
			named = strings.Contains(text, "channel")
		}
		if named && errors.Is(err, fs.ErrPermission) {
			return
		}
	}
	u.t.Errorf("got %v, want ErrPermission that names %s", all, right)
}

// refused reports whether the server has denied the user a command or a key.
func (u *uses) refused(command string) bool {
	for _, entry := range u.s.Do("ACL", "LOG", "1000").([]any) {
		if fields := entry.([]any); slices.Contains(fields, any(u.user)) && slices.Contains(fields, any(command)) {
			return true
		}
	}
	return false
}
