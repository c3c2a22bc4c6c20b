package cas_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver/cas"
)

// table is a store in the process. A value is its own version, since no two
// values are equal.
type table struct {
	mu   sync.Mutex
	rows map[string]string
}

func (t *table) Read(_ context.Context, name string) (cas.Entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.rows[name]
	return cas.Entry{Value: []byte(row), Version: row}, nil
}

func (t *table) Write(_ context.Context, name string, value []byte, version string) (next string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[name] != version {
		return "", cas.ErrChanged
	}
	t.rows[name] = string(value)
	return string(value), nil
}

func (t *table) Delete(_ context.Context, name, version string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[name] != version {
		return cas.ErrChanged
	}
	delete(t.rows, name)
	return nil
}

func Example() {
	ctx := context.Background()
	store := &table{rows: map[string]string{}}
	client, err := dsync.New(cas.New(store, cas.Options{Name: "table"}), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	lock, err := client.Lock(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locked, with token", lock.Token())
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// locked, with token 1
	// <nil>
}
