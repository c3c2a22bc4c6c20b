//go:build unix

package cron

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, map[string]func(){"service": beService}) }

const period = 5 * time.Second

// beService is a process of a fleet, until SIGTERM. Its clock lags. It writes a
// line when a run begins, and a line for the outcome of a period.
func beService() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	client, err := dsync.Open(ctx, os.Getenv("SERVICE_URL"), nil)
	if err != nil {
		panic(err)
	}
	behind, err := time.ParseDuration(os.Getenv("SERVICE_BEHIND"))
	if err != nil {
		panic(err)
	}
	job := &Job{Locker: client, Name: "report", Every: period,
		Run: func(ctx context.Context, at time.Time) error {
			fmt.Println("run", at.Unix())
			select {
			case <-time.After(period / 8): // the duration of the job
			case <-ctx.Done():
			}
			return ctx.Err()
		},
		Report: func(r Result) { fmt.Println(r.Outcome, r.At.Unix(), r.Err) }}
	for ctx.Err() == nil {
		at := time.Now().Truncate(period).Add(period)
		select {
		case <-time.After(time.Until(at.Add(behind))):
			job.Once(ctx, at)
		case <-ctx.Done():
		}
	}
	if err := client.Close(ctx); err != nil {
		panic(err)
	}
}

// services is a fleet of processes, and their output.
type services struct {
	t   *testing.T
	url string
	ran chan service // a run has begun

	mu    sync.Mutex
	lines map[string][]string // by period
}

// service is a process that has begun a run.
type service struct {
	number int
	period string
	*testenv.Process
}

// start starts a process. Its clock lags behind the clock of the previous
// process.
func (s *services) start(number int) {
	p := testenv.Spawn(s.t, "service", "SERVICE_URL="+s.url, fmt.Sprintf("SERVICE_BEHIND=%dms", 150*number))
	go func() { // ends when the process ends
		for line := range p.Lines {
			what, rest, _ := strings.Cut(line, " ")
			at, _, _ := strings.Cut(rest, " ")
			s.mu.Lock()
			s.lines[at] = append(s.lines[at], line)
			s.mu.Unlock()
			if what == "run" {
				s.ran <- service{number, at, p}
			}
		}
	}()
}

// next waits for the next run.
func (s *services) next() service {
	s.t.Helper()
	select {
	case p := <-s.ran:
		return p
	case <-time.After(time.Minute):
		s.t.Fatal("no run for a minute")
		return service{}
	}
}

// TestFleetOnServers runs three processes whose clocks are 150 ms apart. In
// turn the process that runs the job is terminated, killed and suspended, and
// the server is restarted in the middle of a period. Each period has one run.
func TestFleetOnServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (*testenv.Server, string){
		"redis": func(t *testing.T) (*testenv.Server, string) {
			s := testenv.Storage{Disk: true}.Redis(t)
			return &s.Server, "redisson://" + s.Addr + "?ttl=2s"
		},
		"etcd": func(t *testing.T) (*testenv.Server, string) {
			s := testenv.Etcd(t)
			return &s.Server, "etcd://" + s.Addr + "?ttl=2s"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, url := start(t)
			s := &services{t: t, url: url, ran: make(chan service, 100), lines: map[string][]string{}}
			for i := range 3 {
				s.start(i)
			}
			for n := range testenv.Briefly(5, 20) {
				switch p := s.next(); n % 5 {
				case 1:
					if err := syscall.Kill(p.Pid(), syscall.SIGTERM); err != nil {
						t.Fatal(err)
					}
					if err := p.Wait(); err != nil {
						t.Errorf("a process at SIGTERM: %v", err)
					}
					s.start(p.number)
				case 2:
					p.Kill()
					s.start(p.number)
				case 3:
					p.Stop()
					s.next() // another process runs the next period
					p.Cont()
				case 4:
					time.Sleep(period / 3) // Redis has written the lock to its disk
					server.Restart()
				}
			}
			s.check(s.next().period)
		})
	}
}

// check counts the runs of the periods before the last one.
func (s *services) check(last string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, lines := range s.lines {
		runs := 0
		for _, line := range lines {
			if strings.HasPrefix(line, "run ") {
				runs++
			}
		}
		if at != last && runs != 1 {
			s.t.Errorf("period %s had %d runs:\n%s", at, runs, strings.Join(lines, "\n"))
		}
	}
}

// After a restart, etcd keeps the lock of a period for a full TTL. It must not
// block later periods.
func TestRestartKeepsNoPeriodLocked(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	client, err := dsync.Open(t.Context(), "etcd://"+server.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	job := &Job{Locker: client, Name: "report", Every: 4 * time.Second, Run: func(context.Context, time.Time) error { return nil }}
	at := time.Now().Truncate(job.Every).Add(job.Every)
	time.Sleep(time.Until(at))
	if r := job.Once(t.Context(), at); r.Outcome != Ran {
		t.Fatalf("the first period: got %v, %v", r.Outcome, r.Err)
	}
	time.Sleep(time.Until(at.Add(job.Every)))
	server.Restart()
	at = at.Add(2 * job.Every)
	time.Sleep(time.Until(at))
	if r := job.Once(t.Context(), at); r.Outcome != Ran {
		t.Errorf("the period after the restart: got %v, %v", r.Outcome, r.Err)
	}
}
