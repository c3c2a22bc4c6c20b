package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// replayed makes a row that sends what the row ours sends to a Redis for a free lock and its release, and nothing else: the difference between
// the two is all that dsync does beside the work of the server. Its requests heed their contexts, as those of dsync do.
func replayed(in int, ours *Row) *Row {
	return &Row{Name: bareName(ours), Kind: Peer, In: []int{in}, Open: func(ctx context.Context, addrs []string) (Locker, error) {
		recorded, err := ours.Open(ctx, addrs)
		if err != nil {
			return nil, err
		}
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: addrs[:1], ForceSingleClient: true, DisableCache: true,
			AlwaysPipelining: true, // a goroutine writes and one reads: only so can a caller leave who waits for an answer
		})
		if err != nil {
			return nil, errors.Join(err, recorded.Close())
		}
		return &replay{addr: addrs[0], recorded: recorded, client: client}, nil
	}}
}

// bareName is the name of the row with the requests of another one.
func bareName(ours *Row) string { return "the two requests of " + ours.Name + ", bare" }

// replay has one caller.
type replay struct {
	addr     string
	recorded Locker
	client   rueidis.Client
	name     string // for which the requests are
	requests [2][]string
}

func (l *replay) Lock(ctx context.Context, name string) (Held, error) {
	if name != l.name {
		if err := l.record(ctx, name); err != nil {
			return nil, err
		}
	}
	if n, err := l.send(ctx, 0); err != nil || n < 1 {
		return nil, fmt.Errorf("the answer to the first request is %d: %w", n, err)
	}
	return l, nil
}

// Release implements Held.
func (l *replay) Release(ctx context.Context) error {
	n, err := l.send(ctx, 1)
	return released(n+1, err)
}

func (l *replay) send(ctx context.Context, i int) (int64, error) {
	return l.client.Do(ctx, l.client.B().Arbitrary(l.requests[i]...).Build()).ToInt64()
}

func (l *replay) Close() error {
	l.client.Close()
	return l.recorded.Close()
}

// record takes the lock and gives it back, and notes by which requests.
func (l *replay) record(ctx context.Context, name string) error {
	m, err := newMonitor(l.addr)
	if err != nil {
		return err
	}
	defer m.conn.Close()
	held, err := l.recorded.Lock(ctx, name)
	if err != nil {
		return err
	}
	if err := held.Release(ctx); err != nil {
		return err
	}
	if err := sendMark(l.addr, m.mark); err != nil {
		return err
	}
	n := 0
	err = m.each(func(command string) error {
		request, err := unquoted(command)
		if err != nil || len(request) < 4 || strings.ToUpper(request[0]) != "EVALSHA" || request[3] != name {
			return err
		}
		if n < len(l.requests) {
			l.requests[n] = request
		}
		n++
		return nil
	})
	if err == nil && n != len(l.requests) {
		err = fmt.Errorf("a lock and its release took %d scripts", n)
	}
	l.name = name
	return err
}

// unquoted returns the words of a command as MONITOR tells them.
func unquoted(command string) (words []string, err error) {
	for command = strings.TrimSpace(command); command != ""; command = strings.TrimSpace(command) {
		quoted, err := strconv.QuotedPrefix(command)
		if err != nil {
			return nil, fmt.Errorf("monitor: %q: %w", command, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("monitor: %q: %w", command, err)
		}
		words, command = append(words, word), command[len(quoted):]
	}
	return words, nil
}
