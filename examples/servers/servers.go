// Package servers starts the servers of the examples. They run as long as the
// program.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"
)

// Redis starts a Redis server that stores nothing on disk.
func Redis(ctx context.Context, dir string) (*Server, error) {
	addrs, err := freeAddrs(1)
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addrs[0])
	return start(ctx, addrs[0], "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir)
}

// Etcd starts an etcd server with its data in dir.
func Etcd(ctx context.Context, dir string) (*Server, error) {
	addrs, err := freeAddrs(2)
	if err != nil {
		return nil, err
	}
	client, peer := "http://"+addrs[0], "http://"+addrs[1]
	return start(ctx, addrs[0], "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", // the data is thrown away
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
}

// freeAddrs returns addresses that are currently free.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all at the end, so that they differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// Server is a server process.
type Server struct {
	Addr string

	cmd   *exec.Cmd
	ended chan struct{}
}

// start returns when the server is listening.
func start(ctx context.Context, addr, command string, args ...string) (*Server, error) {
	s := &Server{Addr: addr, cmd: exec.Command(command, args...), ended: make(chan struct{})}
	var said bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &said, &said
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (install the server, or give the address of a running server)", err)
	}
	go func() { // ends when the process ends
		defer close(s.ended)
		_ = s.cmd.Wait() // it is killed
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // the server does not report when it listens
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", addr); err == nil {
			return s, c.Close()
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return nil, fmt.Errorf("%s has ended: %s", command, bytes.TrimSpace(said.Bytes()))
		case <-ctx.Done():
			s.Stop()
			return nil, errors.Join(fmt.Errorf("%s does not listen on %s", command, addr), ctx.Err())
		}
	}
}

// Stop ends the server. It may be called several times.
func (s *Server) Stop() {
	s.cmd.Process.Kill() // an error means that the process has ended
	<-s.ended
}
