package stress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// gate decides in proxies which requests are refused.
type gate struct {
	rule  atomic.Pointer[func(request string) (answer error)]
	count atomic.Int64
	seen  sync.Map   // kinds of requests
	mu    sync.Mutex // guards random
}

// answer returns the error with which to answer a request, or nil.
func (g *gate) answer(request string) error {
	g.seen.Store(request, nil)
	rule := g.rule.Load()
	if rule == nil {
		return nil
	}
	err := (*rule)(request)
	if err != nil {
		g.count.Add(1)
	}
	return err
}

// refusal answers requests with random errors. It does so for one kind of
// request that was seen, or for some requests of every kind.
func (g *gate) refusal(answers []error) refusal {
	return refusal{"by a proxy", func(c *cell) func() {
		kinds := []string{""}
		g.seen.Range(func(kind, _ any) bool {
			kinds = append(kinds, kind.(string))
			return true
		})
		slices.Sort(kinds) // for the seed
		kind := kinds[c.random.IntN(len(kinds))]
		c.own.Note("refused: " + kind)
		random := rand.New(rand.NewPCG(c.random.Uint64(), 0))
		rule := func(request string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			if kind != "" && kind != request || kind == "" && random.IntN(3) > 0 {
				return nil
			}
			return answers[random.IntN(len(answers))]
		}
		g.rule.Store(&rule)
		return func() { g.rule.Store(nil) }
	}}
}

// unsure is an answer to a request that may have been carried out.
type unsure struct{ error }

func asUnsure(err error) (u unsure, ok bool) { return u, errors.As(err, &u) }

// answersOfEtcd are errors that make no false statement about keys and leases.
var answersOfEtcd = []error{
	rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader,
	rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCNotSupportedForLearner, rpctypes.ErrGRPCUnhealthy, rpctypes.ErrGRPCCorrupt,
	rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty,
	unsure{rpctypes.ErrGRPCTimeout}, unsure{rpctypes.ErrGRPCTimeoutDueToLeaderFail}, unsure{rpctypes.ErrGRPCTimeoutDueToConnectionLost},
	unsure{rpctypes.ErrGRPCLeaderChanged}, unsure{rpctypes.ErrGRPCTimeoutWaitAppliedIndex},
}

// etcdGate starts a proxy in front of each server.
func etcdGate(tb testing.TB, servers []string) (g *gate, addrs []string) {
	g = &gate{}
	for _, server := range servers {
		conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(plainCodec{})))
		if err != nil {
			tb.Fatal(err)
		}
		proxy := grpc.NewServer(grpc.ForceServerCodecV2(plainCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			return g.passRPC(conn, s)
		}))
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = proxy.Serve(ln) }) // ended by Stop
		tb.Cleanup(func() {
			proxy.Stop()
			conn.Close()
			wg.Wait()
		})
		addrs = append(addrs, ln.Addr().String())
	}
	return g, addrs
}

// passRPC forwards one RPC. It may refuse the RPC, or a message of its stream.
func (g *gate) passRPC(conn *grpc.ClientConn, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	kind := method[strings.LastIndexByte(method, '/')+1:]
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	out, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	ends := make(chan error, 2)
	go func() { // ends after this function has returned, which ends RecvMsg
		for {
			var m []byte
			if err := in.RecvMsg(&m); err != nil {
				_ = out.CloseSend()
				return
			}
			refused := g.answer(kind)
			if _, passes := asUnsure(refused); refused == nil || passes {
				_ = out.SendMsg(m) // RecvMsg returns the same error
			}
			if refused != nil {
				ends <- refused
				return
			}
		}
	}()
	var answers sync.WaitGroup
	defer answers.Wait()
	defer cancel() // before the wait
	answers.Go(func() {
		for {
			var m []byte
			err := out.RecvMsg(&m)
			if err == nil {
				err = in.SendMsg(m)
			}
			if err != nil {
				ends <- err
				return
			}
		}
	})
	err = <-ends
	if u, ok := asUnsure(err); ok {
		return u.error
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// plainCodec does not change messages.
type plainCodec struct{}

func (plainCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (plainCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (plainCodec) Name() string { return "proto" }

var _ encoding.CodecV2 = plainCodec{}

// zkError is the error code in a ZooKeeper answer.
type zkError int32

func (e zkError) Error() string { return fmt.Sprint("code ", int32(e)) }

// answersOfZooKeeper are codes that make no false statement about nodes and
// sessions. Their names are in ZooKeeper's KeeperException.
var answersOfZooKeeper = []error{
	zkError(-1), zkError(-2), zkError(-3), zkError(-5), zkError(-9), zkError(-102), zkError(-119), zkError(-124), zkError(-125), zkError(-127),
	unsure{zkError(-4)}, unsure{zkError(-7)},
}

// requestsToZooKeeper names the kinds of requests by their numbers.
var requestsToZooKeeper = map[int32]string{
	1: "create", 2: "delete", 3: "exists", 4: "getData", 5: "setData", 6: "getACL", 8: "getChildren", 9: "sync", 12: "getChildren2", 13: "check",
	14: "multi", 15: "create2", 18: "removeWatches", 19: "createContainer", 21: "createTTL", 22: "multiRead", 106: "addWatch",
}

// zkGate starts a proxy in front of each server.
func zkGate(tb testing.TB, servers []string) (g *gate, addrs []string) {
	g = &gate{}
	for _, server := range servers {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { // ends when the listener is closed
			for {
				client, err := ln.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { g.passZooKeeper(ctx, client, server) })
			}
		})
		tb.Cleanup(func() {
			ln.Close()
			cancel()
			wg.Wait()
		})
		addrs = append(addrs, ln.Addr().String())
	}
	return g, addrs
}

// passZooKeeper forwards the frames of a connection, and answers the requests
// that are refused.
func (g *gate) passZooKeeper(ctx context.Context, client net.Conn, addr string) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		server.Close()
	})
	defer stop()
	var mu sync.Mutex              // guards the following variables and writes to client
	var zxid uint64                // of the last answer
	var unheard = map[int32]bool{} // requests whose answers are discarded
	var answers sync.WaitGroup
	defer answers.Wait()
	answers.Go(func() {
		defer client.Close()
		for first := true; ; first = false {
			frame, err := readFrame(server)
			if err != nil {
				return
			}
			mu.Lock()
			lost := false
			if !first && len(frame) >= 16 {
				xid := int32(binary.BigEndian.Uint32(frame))
				if last := binary.BigEndian.Uint64(frame[4:]); int64(last) > 0 {
					zxid = last
				}
				lost = unheard[xid]
				delete(unheard, xid)
			}
			if !lost {
				err = writeFrame(client, frame)
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	defer server.Close()
	for first := true; ; first = false {
		frame, err := readFrame(client)
		if err != nil {
			return
		}
		var refused error
		if !first && len(frame) >= 8 {
			if kind, ok := requestsToZooKeeper[int32(binary.BigEndian.Uint32(frame[4:]))]; ok {
				refused = g.answer(kind)
			}
		}
		passed, passes := asUnsure(refused)
		mu.Lock()
		if passes {
			refused = passed.error
			unheard[int32(binary.BigEndian.Uint32(frame))] = true
		}
		if refused != nil {
			answer := binary.BigEndian.AppendUint64(slices.Clone(frame[:4]), zxid)
			err = writeFrame(client, binary.BigEndian.AppendUint32(answer, uint32(refused.(zkError))))
		}
		mu.Unlock()
		if refused == nil || passes {
			err = errors.Join(err, writeFrame(server, frame))
		}
		if err != nil {
			return
		}
	}
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > 1<<26 {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(r, frame)
	return frame, err
}

func writeFrame(w io.Writer, frame []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}
