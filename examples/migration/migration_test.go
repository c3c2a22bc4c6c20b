package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/examples/coupon/shop"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunProgram(main, sellerVariable)
	testenv.NoLeaks(m)
}

// TestMigration follows the whole runbook. The Redis server has a user with a
// password, which must not appear in any output.
func TestMigration(t *testing.T) {
	password := testenv.Password()
	redis, etcd := testenv.Redis(t), testenv.Etcd(t)
	redis.Do("ACL", "SETUSER", "mover", "on", ">"+password, "~*", "&*", "+@all")
	from, to := "redisson://mover:"+password+"@"+redis.Addr, "etcd://"+etcd.Addr+"/locks/"
	status, stdout, stderr := testenv.Execute(t, "-from", from, "-to", to, "-patience", "2m")
	if want := "\nwith lock: issued=50 refused=50 remaining=0\n"; status != 0 || stderr != "" || !strings.HasSuffix(stdout, want) {
		t.Errorf("got status %d, standard output %q, standard error %q; want 0, no standard error, and %q at the end", status, stdout, stderr, want)
	}
	for _, want := range []string{"behind: coupons-", "floor=", "sealed: 3; sealed already: 0", "have moved (3), and tokens rise"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("want %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout+stderr, password) {
		t.Errorf("the password is in\n%s%s", stdout, stderr)
	}
}

func TestExitStatus(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		stderr string // a part of it
	}{
		{"-h", 0, "-patience"},
		{"-nonsense", 2, "-nonsense"},
		{"nonsense", 2, "arguments"},
		{"-from redisson://127.0.0.1:1", 2, "both"},
		{"-patience 0s", 2, "-patience"},
		{"-from redisson://u:" + testenv.PasswordMark + "@127.0.0.1:1 -to memory://x", 1, "connection refused"},
	} {
		status, stdout, stderr := testenv.Execute(t, strings.Fields(test.args)...)
		if status != test.status || !strings.Contains(stderr, test.stderr) || strings.Contains(stdout+stderr, testenv.PasswordMark) {
			t.Errorf("%s: got status %d, standard error %q; want %d, and %q without a password", test.args, status, stderr, test.status, test.stderr)
		}
	}
}

// newSeller returns a seller that shares only the files with others.
func newSeller(t *testing.T, dir string) *seller {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	client, err := dsync.Open(t.Context(), "memory://", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(t.Context()) })
	return &seller{
		shop:   &shop.Shop{Stock: shop.Stock{File: open("stock")}, Locker: client, Name: "x", Moment: time.Millisecond},
		tokens: shop.Stock{File: open("tokens")},
		out:    io.Discard,
	}
}

func TestAuditFindsTwoHolders(t *testing.T) {
	dir := t.TempDir()
	one, other := newSeller(t, dir), newSeller(t, dir)
	stock := one.shop.Stock
	if err := stock.Write(1_000_000); err != nil {
		t.Fatal(err)
	}
	if err := other.tokens.Write(0); err != nil {
		t.Fatal(err)
	}
	if err := other.audit(t.Context()); err != nil {
		t.Errorf("an audit while no seller is active: %v", err)
	}
	sold := make(chan error)
	go func() { // ends when its lease ends
		lease, err := one.shop.Locker.Lock(t.Context(), "x")
		if err == nil {
			for i := 0; err == nil && lease.Err() == nil; i++ {
				err = stock.Write(i)
			}
			err = nil
		}
		sold <- err
	}()
	var found error
	for found == nil {
		found = other.audit(t.Context())
	}
	if err := one.shop.Locker.(*dsync.Client).Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-sold; err != nil {
		t.Error(err)
	}
	if !strings.Contains(found.Error(), "while the lock was held") {
		t.Errorf("got %v, want an error about the changed stock", found)
	}
}

func TestAuditFindsFallingTokens(t *testing.T) {
	s := newSeller(t, t.TempDir())
	if err := s.shop.Stock.Write(1); err != nil {
		t.Fatal(err)
	}
	if err := s.tokens.Write(1 << 62); err != nil {
		t.Fatal(err)
	}
	if err := s.audit(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprint("after ", 1<<62)) {
		t.Errorf("got %v, want an error about the falling token", err)
	}
}
