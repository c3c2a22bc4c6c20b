package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/go-dsync/dsync/driver"
)

// slowServer carries out one grant or revocation at a time. It carries out
// accepted requests even if no client is waiting for the answer anymore.
type slowServer struct {
	pb.LeaseClient // nil: the driver calls no more than this

	each   time.Duration
	grants atomic.Int64

	mu     sync.Mutex
	free   time.Time // when the requests so far are carried out
	leases map[int64]time.Time
	ttl    map[int64]time.Duration
}

// queue returns when a request will be carried out.
func (s *slowServer) queue() <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(s.each)
	return time.After(time.Until(s.free))
}

// answer waits until a request is carried out, or ctx ends.
func (s *slowServer) answer(ctx context.Context) error {
	select {
	case <-s.queue():
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *slowServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	s.grants.Add(1)
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl[r.ID] = time.Duration(r.TTL) * time.Second
	s.leases[r.ID] = time.Now().Add(s.ttl[r.ID])
	return &pb.LeaseGrantResponse{ID: r.ID, TTL: r.TTL}, nil
}

func (s *slowServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, r.ID)
	return &pb.LeaseRevokeResponse{}, nil
}

func (s *slowServer) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return &slowKeepAlive{ctx: ctx, server: s}, nil
}

type slowKeepAlive struct {
	grpc.ClientStream
	ctx    context.Context
	server *slowServer
	id     int64
}

func (k *slowKeepAlive) Send(r *pb.LeaseKeepAliveRequest) error {
	k.id = r.ID
	return nil
}

// Recv is not a proposal, but still takes longer than an attempt with a short
// TTL.
func (k *slowKeepAlive) Recv() (*pb.LeaseKeepAliveResponse, error) {
	s := k.server
	select {
	case <-time.After(400 * time.Millisecond):
	case <-k.ctx.Done():
		return nil, status.FromContextError(k.ctx.Err()).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &pb.LeaseKeepAliveResponse{ID: k.id}
	if end, ok := s.leases[k.id]; ok && time.Now().Before(end) {
		s.leases[k.id], answer.TTL = time.Now().Add(s.ttl[k.id]), int64(s.ttl[k.id]/time.Second)
	}
	return answer, nil
}

// TestCrowdOnASlowServer has more clients request a lease simultaneously than
// the server can serve within the TTL. All of them get a lease and keep it.
func TestCrowdOnASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, ttl = 200, 2
		s := &slowServer{each: 50 * time.Millisecond, leases: make(map[int64]time.Time), ttl: make(map[int64]time.Duration)}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for range clients {
			d, err := New(clientv3.NewCtxClient(context.Background()), nil)
			if err != nil {
				t.Fatal(err)
			}
			d.leases = s
			all.Go(func() {
				defer d.Close(context.Background())
				for {
					got := &hold{driver: d, request: &driver.Request{Name: "a"}}
					err := got.board(ctx, ttl)
					if ctx.Err() != nil {
						t.Errorf("no lease: %v", err)
						return
					}
					if err != nil {
						<-time.After(time.Second) // as package dsync does at most
						continue
					}
					<-time.After(5 * time.Second)
					if got.session.IsDead() {
						t.Error("the lease has ended")
					}
					got.leaveToLease()
					return
				}
			})
		}
		all.Wait()
		t.Logf("%d grants", s.grants.Load())
		if n := s.grants.Load(); n > 4*clients {
			t.Errorf("grants: got %d for %d clients", n, clients)
		}
	})
}
