//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-dsync/dsync/guard"
)

// plan is the leader's plan for all nodes.
type plan struct {
	Leader string    // the URL of its page
	Term   uint64    // the token of its lease
	Since  time.Time // of the term
	Number int       // of the plan, in the term
}

// store stores the last plan. It is the resource that the leader writes to. It
// refuses a plan from a leader whose term has ended.
type store struct {
	mu     sync.Mutex // covers the check and the write, which must be atomic
	tokens guard.Memory
	plan   plan
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		var p plan
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		} else if err := s.write(p); err != nil {
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		}
		return
	}
	s.mu.Lock()
	p := s.plan
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(p) // an error means that the client is gone
}

func (s *store) write(p plan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.tokens.Write("plan", p.Term); err != nil {
		return err
	}
	s.plan = p
	return nil
}

// storeClient is a node's view of the store.
type storeClient struct {
	url  string
	http http.Client
}

// newStoreClient uses each connection once. In net/http, if a request is
// canceled just when its response arrives, the next request on the same
// connection can fail.
func newStoreClient(url string) *storeClient {
	return &storeClient{url: url, http: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

func (c *storeClient) write(ctx context.Context, p plan) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, http.MethodPut, body)
	return err
}

func (c *storeClient) read(ctx context.Context) (p plan, err error) {
	return c.do(ctx, http.MethodGet, nil)
}

func (c *storeClient) do(ctx context.Context, method string, body []byte) (p plan, err error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url, bytes.NewReader(body))
	if err != nil {
		return p, err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return p, err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusPreconditionFailed:
		return p, guard.ErrStale
	case answer.StatusCode != http.StatusOK:
		return p, fmt.Errorf("the store answers %s", answer.Status)
	case method == http.MethodGet:
		err = json.NewDecoder(answer.Body).Decode(&p)
	}
	return p, err
}
