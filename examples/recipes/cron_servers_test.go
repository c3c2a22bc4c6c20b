//go:build unix

package recipes

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, map[string]func(){"cron": beCron}) }

const cronPeriod = 2 * time.Second

// beCron is a service with a cron job, in a process of its own, until SIGTERM. Its clock is behind. It writes a line for each job, as soon as
// that begins, and for each answer of OncePerPeriod that came in time.
func beCron() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	client, err := dsync.Open(ctx, os.Getenv("CRON_URL"), nil)
	if err != nil {
		panic(err)
	}
	locker := dsync.Locker(client)
	if os.Getenv("CRON_HOLD") != "" {
		locker = dsync.With(client, dsync.HoldAtLeast(cronPeriod))
	}
	behind, err := time.ParseDuration(os.Getenv("CRON_BEHIND"))
	if err != nil {
		panic(err)
	}
	for at := time.Now().Truncate(cronPeriod).Add(cronPeriod); ctx.Err() == nil; at = at.Add(cronPeriod) {
		select {
		case <-time.After(time.Until(at.Add(behind))):
		case <-ctx.Done():
			continue
		}
		err := OncePerPeriod(ctx, locker, "report", cronPeriod, at, func(ctx context.Context) error {
			if time.Since(at) >= cronPeriod { // the machine has stood still since OncePerPeriod looked at the clock
				fmt.Println("late", at.Unix())
				return nil
			}
			fmt.Println("run", at.Unix())
			select {
			case <-time.After(cronPeriod / 4): // what the job takes
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		} else if time.Since(at) < cronPeriod {
			fmt.Println("answered", at.Unix())
		}
	}
	if err := client.Close(ctx); err != nil {
		panic(err)
	}
}

// cron is what the processes of a test have written.
type cron struct {
	t     *testing.T
	env   []string
	begun chan started

	mu             sync.Mutex
	runs           map[string]int  // by period
	answered, late map[string]bool // periods for which somebody asked in time, and those with a job that the machine kept from beginning in time
}

// started is a job that has begun in a process.
type started struct {
	period, process int
	who             *testenv.Process
}

// start starts the process with a number, whose clock is behind by 150 ms for each before it.
func (c *cron) start(number int) {
	c.t.Helper()
	p := testenv.Spawn(c.t, "cron", append(c.env, fmt.Sprintf("CRON_BEHIND=%dms", 150*number))...)
	go func() { // ends with the process
		for line := range p.Lines {
			what, period, _ := strings.Cut(line, " ")
			c.mu.Lock()
			switch what {
			case "run":
				c.runs[period]++
			case "late":
				c.late[period] = true
			case "answered":
				c.answered[period] = true
			}
			c.mu.Unlock()
			if at, err := strconv.Atoi(period); what == "run" && err == nil {
				c.begun <- started{at, number, p}
			}
		}
	}()
}

// TestCronOnServers is TestCronRunsOncePerPeriod with three processes on real servers, whose clocks are 150 ms apart. Every third time the process
// that has the job gets SIGTERM, and another one comes in its place. At that moment the job has just begun, and the others are
// yet to ask, which takes HoldAtLeast; PostgreSQL, which has none, gets SIGTERM in the middle of the period.
func TestCronOnServers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, hold string
		wait       time.Duration
		url        func(*testing.T) string
	}{
		{"redis", "CRON_HOLD=yes", 0, func(t *testing.T) string { return "redisson://" + testenv.Redis(t).Addr }},
		{"etcd", "CRON_HOLD=yes", 0, func(t *testing.T) string { return "etcd://" + testenv.Etcd(t).Addr }},
		{"postgres", "CRON_HOLD=", cronPeriod / 2, func(t *testing.T) string {
			return testenv.Postgres(t).URL("pglock") + "?sslmode=disable"
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := &cron{t: t, env: []string{"CRON_URL=" + test.url(t), test.hold}, runs: map[string]int{}, answered: map[string]bool{},
				late: map[string]bool{}, begun: make(chan started, 100)}
			for i := range 3 {
				c.start(i)
			}
			for n := range testenv.Briefly(4, 20) {
				if job := c.await(); n%3 == 1 {
					time.Sleep(test.wait)
					c.terminate(job)
				}
			}
			c.check(c.await())
		})
	}
}

// await waits for the next job.
func (c *cron) await() started {
	c.t.Helper()
	select {
	case job := <-c.begun:
		return job
	case <-time.After(time.Minute):
		c.t.Fatal("no job has begun for a minute")
		return started{}
	}
}

func (c *cron) terminate(job started) {
	c.t.Helper()
	if err := syscall.Kill(job.who.Pid(), syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	if err := job.who.Wait(); err != nil {
		c.t.Errorf("a process at SIGTERM: %v", err)
	}
	c.start(job.process)
}

// check looks at the periods before that of a job.
func (c *cron) check(last started) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, strconv.Itoa(last.period))
	delete(c.answered, strconv.Itoa(last.period))
	for period, n := range c.runs {
		if n != 1 && !c.late[period] {
			c.t.Errorf("%d runs in period %s, want 1", n, period)
		}
	}
	for period := range c.answered {
		if c.runs[period] == 0 && !c.late[period] {
			c.t.Errorf("no run in period %s, although a process asked in time", period)
		}
	}
	c.t.Logf("%d periods with a run, %d with a late one", len(c.runs), len(c.late))
}
