package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"
)

// redis is a server that runs during the demo.
type redis struct {
	addr string
	dir  string
	cmd  *exec.Cmd
}

func startRedis(ctx context.Context) (*redis, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &redis{addr: free.Addr().String()}
	free.Close()
	if r.dir, err = os.MkdirTemp("", "shop"); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(r.addr)
	r.cmd = exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", r.dir)
	if err := r.cmd.Start(); err != nil {
		os.RemoveAll(r.dir)
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	for range 200 { // it does not report when it listens
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			c.Close()
			return r, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.stop()
	return nil, fmt.Errorf("redis-server does not listen on %s", r.addr)
}

// stop ends the server and waits for it.
func (r *redis) stop() {
	r.cmd.Process.Kill() // an error means that the process has ended
	_ = r.cmd.Wait()     // which was killed
	os.RemoveAll(r.dir)
}
