package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/sqllock"
)

// doctorReport is the result of `doctor`. Its JSON is part of the command's
// interface.
type doctorReport struct {
	URL      string        `json:"url"`
	Faults   int           `json:"faults"`
	Warnings int           `json:"warnings"`
	Findings []finding     `json:"findings"`
	Promises []string      `json:"promises,omitempty"` // what the backend promises, in words
	Pairs    *pairsMeasure `json:"pairs,omitempty"`    // a lock followed by its unlock
}

// finding is the outcome of one check.
type finding struct {
	Check string `json:"check"`
	Level level  `json:"level"`
	Text  string `json:"text"`
	Cure  string `json:"cure,omitempty"`
	See   string `json:"see,omitempty"` // the section of the documentation that explains it
}

type level string

const (
	ok      level = "ok"
	note    level = "note"    // nothing is wrong
	warning level = "warning" // locks work today, but may break their promises in certain events
	fault   level = "fault"   // locks do not work, or not as promised
)

// pairsMeasure contains the times to acquire and release a free lock.
type pairsMeasure struct {
	Pairs   int     `json:"pairs"`
	P50Msec float64 `json:"p50_ms"`
	P99Msec float64 `json:"p99_ms"`
}

// examination is one run of `doctor`.
type examination struct {
	raw     string
	url     *driver.URL
	name    string // of the lock that is acquired, and the prefix of names used to test rights
	connect time.Duration
	undo    func() // removes what the driver has created; may be nil
	report  doctorReport
}

// examiners inspect servers before a driver does, by URL scheme. A driver
// reports only one fault and refuses a server that it cannot use. Examiners
// report whether opening the driver makes sense.
var examiners = map[string]func(ctx context.Context, x *examination) bool{
	"redisson":     examineRedis,
	"redlock":      examineRedis,
	"redis-string": examineRedis,
	"etcd":         examineEtcd,
	"zk":           examineZooKeeper,
	"pglock":       examinePostgres,
}

const (
	pairsMeasured = 20
	doctorName    = "dsync:doctor" // the lock, unless the user names another lock
)

func Command() *cobra.Command {
	var f cli.BackendFlags
	var asJSON bool
	var name string
	c := &cobra.Command{
		Use:   "doctor [URL]",
		Short: "Check whether a backend is fit for locks",
		Long: `Doctor checks the servers of a URL: whether they can be reached, the names in their certificates, their version, whether they accept
writes, evict or forget keys, their clock, how many connections are left, and which rights of docs/security.md the user lacks. Then it
opens the URL as programs do, prints the promises of the backend, and acquires and releases one lock 20 times. Each finding shows the
cure and the section of the documentation that explains it.

It tests rights on its own keys, whose names begin with --name, and removes these keys even if it is interrupted. If the user may only
use certain names, as with ~lk:*, set --name, for example to lk:doctor.

Exit status
    0  no fault; there may be warnings
    1  a fault was found
    2  the command line is wrong
  130  interrupted`,
		Example: `  DSYNC_URL=redisson://app:secret@redis:6379 dsync doctor --name lk:doctor
  dsync doctor etcd://etcd1:2379,etcd2:2379,etcd3:2379/locks/
  dsync doctor --url-file /run/secrets/locks --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cli.CompleteOneURL,
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := cli.ArgumentURL(c, args)
			if err == nil {
				err = cli.CheckName(name)
			}
			if err != nil {
				return cli.Usage(err)
			}
			if err := f.Valid(); err != nil {
				return err
			}
			r := examine(c.Context(), raw, name, f.Connect)
			if err := c.Context().Err(); err != nil {
				return err
			}
			if err = cli.Write(c.OutOrStdout(), asJSON, r, r.write); err == nil && r.Faults > 0 {
				err = errors.New(cli.Plural(r.Faults, "fault"))
			}
			return err
		},
	}
	f.Add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	c.Flags().StringVar(&name, "name", doctorName, "`NAME` of the lock that is acquired")
	return c
}

// examine inspects the backend of a URL. Each part takes at most the connect
// duration.
func examine(ctx context.Context, raw, name string, connect time.Duration) *doctorReport {
	x := &examination{raw: raw, name: name, connect: connect}
	x.url, _ = driver.ParseURL(raw) // checked before
	x.report.URL = x.url.String()
	look := examiners[x.url.Scheme]
	if look == nil || look(ctx, x) {
		x.open(ctx)
	}
	if x.undo != nil {
		x.undo()
	}
	for _, f := range x.report.Findings {
		switch f.Level {
		case fault:
			x.report.Faults++
		case warning:
			x.report.Warnings++
		}
	}
	return &x.report
}

func (x *examination) add(f finding) { x.report.Findings = append(x.report.Findings, f) }

// good adds a finding without a fault.
func (x *examination) good(check, format string, args ...any) {
	x.add(finding{Check: check, Level: ok, Text: fmt.Sprintf(format, args...)})
}

// bad adds a finding with its remedy.
func (x *examination) bad(l level, check, text, cure, see string) {
	x.add(finding{check, l, text, cure, see})
}

// hasFault reports whether a check has found a fault so far; "" matches any
// check.
func (x *examination) hasFault(check string) bool {
	return slices.ContainsFunc(x.report.Findings, func(f finding) bool { return f.Level == fault && (check == "" || f.Check == check) })
}

// open opens the driver as programs do and measures the lock.
func (x *examination) open(ctx context.Context) {
	opening, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	b, err := cli.OpenBackend(opening, x.raw)
	if err != nil {
		x.refused(err)
		return
	}
	defer b.Close() // nothing is held
	x.good("open", "the driver accepts the server")
	if x.isTable() {
		x.good("table", "the table exists and can be read")
	}
	x.report.Promises = promises(b.Client.Info(), b.Client.TTL())
	x.measure(ctx, b.Client)
}

// isTable reports whether the locks are in a table of drivers/sqllock.
// password returns the password of the URL, which may be in a file.
func (x *examination) password() (string, error) {
	read := x.url.Password()
	if read == nil {
		return "", nil
	}
	password, err := read()
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	return password, nil
}

const seePasswords = "docs/security.md#passwords"

func (x *examination) isTable() bool { return x.url.Scheme == "mysql" || x.url.Scheme == "pgtable" }

// refused adds the error from opening the driver. The earlier findings usually
// explain it.
func (x *examination) refused(err error) {
	text := "the driver refuses the server: " + err.Error()
	var missing *sqllock.MissingTableError
	switch {
	case errors.As(err, &missing):
		x.bad(fault, "table", "there is no table "+missing.Table, missing.DDL, "docs/backends/sql.md#the-table")
	case x.hasFault(""):
		x.add(finding{Check: "open", Level: note, Text: text})
	case errors.Is(err, errors.ErrUnsupported) && strings.Contains(err.Error(), "TTL"):
		x.limitedTTL(err)
	default:
		x.bad(fault, "open", text, "see the message; the page lists the URL parameters", seeReach)
	}
}

// limitedTTL is a finding about a TTL that the server does not honor.
func (x *examination) limitedTTL(err error) {
	cure, see := "set a ttl= in the URL within these limits", "docs/backends/etcd.md#limits"
	if x.url.Scheme == "zk" {
		see = "docs/backends/zookeeper.md#limits"
		cure += ", or change the server's limits: minSessionTimeout, maxSessionTimeout and tickTime in zoo.cfg"
	}
	x.bad(fault, "session limit", err.Error(), cure, see)
}

// measure acquires and releases a lock repeatedly.
func (x *examination) measure(ctx context.Context, client *dsync.Client) {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	took := make([]time.Duration, pairsMeasured)
	for i := range took {
		began := time.Now()
		lease, err := client.Lock(ctx, x.name)
		if err == nil {
			err = lease.Unlock(ctx)
		}
		if err != nil {
			x.bad(fault, "lock", fmt.Sprintf("%q cannot be locked and unlocked: %v", x.name, err), x.lockCure(err), "docs/security.md#rights")
			return
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	p50, p99 := took[pairsMeasured/2-1], took[pairsMeasured-1]
	x.report.Pairs = &pairsMeasure{pairsMeasured, cli.Milliseconds(p50), cli.Milliseconds(p99)}
	if limit := client.TTL() / 6; p99 > limit {
		x.bad(warning, "lock", fmt.Sprintf("lock and unlock took %v", p99.Round(time.Millisecond)),
			fmt.Sprintf("use a nearer or less busy server, or a TTL longer than %v: a lease is lost if its renewals are not answered in time", client.TTL()),
			"docs/performance.md#performance")
		return
	}
	x.good("lock", "%d locks and unlocks: p50 %.2f ms, p99 %.2f ms", pairsMeasured, cli.Milliseconds(p50), cli.Milliseconds(p99))
}

func (x *examination) lockCure(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded) && errors.Is(err, driver.ErrLocked):
		return "the name is held: try again later, or give another --name"
	case x.hasFault("rights"):
		return "grant the missing rights listed above"
	case errors.Is(err, fs.ErrPermission) && x.isTable():
		return "GRANT SELECT, INSERT, UPDATE, DELETE on the table"
	}
	return "see the message; the user may need --name with a name that its rights cover"
}
