package main

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

// servers are a Redis and an etcd for the time of the program.
type servers struct{ redis, etcd *server }

func startServers(ctx context.Context, dir string) (*servers, error) {
	addrs, err := freeAddrs(3)
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addrs[0])
	s := &servers{}
	if s.redis, err = startServer(ctx, addrs[0], "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir); err != nil {
		return nil, err
	}
	client, peer := "http://"+addrs[1], "http://"+addrs[2]
	s.etcd, err = startServer(ctx, addrs[1], "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", // it is thrown away
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err != nil {
		s.redis.stop()
		return nil, err
	}
	return s, nil
}

func (s *servers) redisURL() string { return "redisson://" + s.redis.addr }
func (s *servers) etcdURL() string  { return "etcd://" + s.etcd.addr + "/locks/" }

func (s *servers) stop() {
	s.redis.stop()
	s.etcd.stop()
}

// freeAddrs returns addresses that are free now.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all at the end: they have to differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// server is a process that listens.
type server struct {
	addr  string
	cmd   *exec.Cmd
	ended chan struct{}
}

// startServer returns when the server listens.
func startServer(ctx context.Context, addr, command string, args ...string) (*server, error) {
	s := &server{addr: addr, cmd: exec.Command(command, args...), ended: make(chan struct{})}
	var said bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &said, &said
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (it has to be installed, or -from and -to to be given)", err)
	}
	go func() { // ends with the process
		defer close(s.ended)
		_ = s.cmd.Wait() // it is killed
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // it tells nobody when it listens
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
			s.stop()
			return nil, errors.Join(fmt.Errorf("%s does not listen on %s", command, addr), ctx.Err())
		}
	}
}

// stop ends the server. It may be called again.
func (s *server) stop() {
	s.cmd.Process.Kill() // an error means that it has ended
	<-s.ended
}
