package pglock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync/driver"
)

// connectFor bounds one connect if the configuration does not.
const connectFor = 10 * time.Second

// maxDials is the maximum number of times that a session is connected again
// after the server has ended it immediately.
const maxDials = 10

// dial connects a session and does not add it to the driver's sessions. If the
// TTL passes during the set-up, on a busy machine, dial tries again.
func (d *Driver) dial(ctx context.Context, ttl time.Duration, waiter bool) (s *session, err error) {
	for range maxDials {
		s, err = d.dialOnce(ctx, ttl, waiter)
		var answer *pgconn.PgError
		if err == nil || !errors.As(err, &answer) || answer.Code != codeIdle {
			break
		}
	}
	d.refused.Store(errors.Is(err, driver.ErrCredentials))
	return s, err
}

func (d *Driver) dialOnce(ctx context.Context, ttl time.Duration, waiter bool) (*session, error) {
	if d.config.ConnectTimeout == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, connectFor)
		defer cancel()
	}
	s := &session{d: d, ttl: ttl, waiter: waiter, id: d.label + newID()}
	conn, err := d.connect(ctx, s)
	if err != nil {
		return nil, connectError(err)
	}
	asked := d.now()
	if err := d.prepare(ctx, conn, s); err != nil {
		conn.Close(ctx)
		return nil, connectError(err)
	}
	if err := conn.SyncConn(ctx); err != nil {
		conn.Close(ctx)
		return nil, connectError(err)
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	s.conn = hijacked.Conn
	s.frontend = pgproto3.NewFrontend(s.conn, s.conn)
	keepAlive(s.conn, ttl)
	s.init(asked)
	return s, nil
}

// connect makes the connection. The server holds no lock for the connection
// yet, so ctx may end it.
func (d *Driver) connect(ctx context.Context, s *session) (*pgconn.PgConn, error) {
	config := d.config.Copy()
	if d.options.Password != nil {
		password, err := d.options.Password(ctx)
		if err != nil {
			return nil, fmt.Errorf("password of the connection: %w", err)
		}
		config.Password = password
	}
	if config.RuntimeParams == nil {
		config.RuntimeParams = make(map[string]string)
	}
	config.RuntimeParams["application_name"] = s.id
	if !d.server.pooled {
		for _, p := range d.settings(s.ttl) {
			config.RuntimeParams[p.name] = p.value
		}
	}
	config.AfterConnect = nil
	for _, f := range config.Fallbacks {
		if (f.Host != config.Host || f.Port != config.Port) && config.ValidateConnect == nil {
			// there is a choice of servers
			config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		err = newDialError(err, config.RuntimeParams["options"])
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.Code == codeProtocol && strings.Contains(answer.Message, "startup parameter") {
		return nil, fmt.Errorf("%w: %w", ErrPooler, err)
	}
	return conn, err
}

// setting is a server setting for a session.
type setting struct{ name, value string }

// settings returns the settings that every session needs. The defaults of a
// role or database must not change them.
func (d *Driver) settings(ttl time.Duration) []setting {
	all := []setting{
		{"idle_session_timeout", milliseconds(ttl)},
		{"statement_timeout", "0"}, // a wait for a lock is a statement
		{"lock_timeout", "0"},
		{"default_transaction_isolation", "read committed"},
		{"search_path", "pg_catalog"},
		{"client_encoding", "UTF8"},
	}
	if _, given := d.config.RuntimeParams["synchronous_commit"]; !given && d.options.Tokens == TokensDurable {
		all = append(all, setting{"synchronous_commit", "on"})
	}
	return all
}

// optionalSettings returns settings that let the server notice the end of a
// client earlier, and settings that do not disturb waiting sessions. Not all
// servers and systems have the former, and not all roles may set the latter.
func optionalSettings(conn *pgconn.PgConn, s *session) []setting {
	ttl := s.ttl
	seconds := strconv.Itoa(int(max(1, ttl/(3*time.Second))))
	all := []setting{
		{"tcp_user_timeout", milliseconds(ttl)},
		{"tcp_keepalives_idle", seconds},
		{"tcp_keepalives_interval", strconv.Itoa(int(max(1, ttl/(9*time.Second))))},
		{"tcp_keepalives_count", "3"},
		{"client_connection_check_interval", milliseconds(min(ttl/2, 2*time.Second))},
	}
	if s.waiter && grantsSettings(conn) {
		all = append(all, setting{deadlockTimeout, milliseconds(maxTTL)})
	}
	return all
}

// deadlockTimeout is the setting for the time that a session waits before it
// checks, once, for a deadlock. During this check no lock can be acquired or
// released. The duration of the check grows with the square of the number of
// sessions that wait for the name: 19 ms with 1,000 sessions. A waiting session
// has no locks, so the check is useless.
const deadlockTimeout = "deadlock_timeout"

// grantsSettings reports whether the server is PostgreSQL 15 or later, in which
// a role may be granted a setting of superusers.
func grantsSettings(conn *pgconn.PgConn) bool {
	major, _, _ := strings.Cut(conn.ParameterStatus("server_version"), ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 15
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(min(int64((d+time.Millisecond-1)/time.Millisecond), math.MaxInt32), 10)
}

const setQuery = `SELECT pg_catalog.set_config($1::pg_catalog.text, $2::pg_catalog.text, false)`

// allowedQuery is setQuery if the role has the permission, so that a missing
// permission causes no error in the server's log.
const allowedQuery = `SELECT CASE WHEN pg_catalog.has_parameter_privilege($1::pg_catalog.text, 'SET') ` +

	`THEN pg_catalog.set_config($1::pg_catalog.text, $2::pg_catalog.text, false) END`

// factsQuery also turns off the transaction timeout if there is one.
const factsQuery = `SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), ` +

	`pg_catalog.current_setting('server_version_num')::pg_catalog.int4, ` +
	`(EXTRACT(epoch FROM pg_catalog.current_setting('idle_session_timeout')::pg_catalog.interval) * 1000)::pg_catalog.int8, ` +
	`pg_catalog.current_setting('synchronous_commit'), ` +
	`CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 170000 ` +
	`THEN pg_catalog.set_config('transaction_timeout', '0', false) END, ` +
	`(SELECT f FROM pg_catalog.unnest(pg_catalog.string_to_array($1::pg_catalog.text, '|')) f ` +
	`WHERE NOT pg_catalog.has_function_privilege(pg_catalog.to_regprocedure('pg_catalog.' || f), 'EXECUTE') LIMIT 1)` // null if the server has no such function

// facts is the number of columns of factsQuery.
const facts = 7

// functions returns all functions that a role may not be allowed to use. All
// keys of a program may have the same form, so a role does not need the right
// to acquire locks of both forms. But every lock that can be acquired must be
// releasable.
func (d *Driver) functions() string {
	all := []string{"pg_advisory_unlock(bigint)", "pg_advisory_unlock_shared(bigint)"}
	if d.options.Key == nil {
		all = append(all, "pg_try_advisory_lock(bigint)", "pg_advisory_lock(bigint)", "pg_try_advisory_lock_shared(bigint)",
			"pg_advisory_lock_shared(bigint)", "pg_try_advisory_xact_lock_shared(bigint)")
	} else {
		all = append(all, "pg_advisory_unlock(int,int)", "pg_advisory_unlock_shared(int,int)")
	}
	if d.options.Tokens != TokensNone {
		all = append(all, "pg_current_xact_id()")
	}
	if d.options.Tokens == TokensDurable {
		all = append(all, "pg_logical_emit_message(boolean,text,text)", "pg_logical_emit_message(boolean,text,text,boolean)") // since PostgreSQL 17
	}
	return strings.Join(all, "|")
}

// prepare sets the session up and checks the server, in one round trip.
func (d *Driver) prepare(ctx context.Context, conn *pgconn.PgConn, s *session) error {
	p := conn.StartPipeline(ctx)
	if d.server.pooled {
		for _, o := range d.settings(s.ttl) {
			p.SendQueryParams(setQuery, [][]byte{[]byte(o.name), []byte(o.value)}, nil, nil, nil)
		}
	}
	p.SendQueryParams(factsQuery, [][]byte{[]byte(d.functions())}, nil, nil, binaryFormat)
	for _, st := range preparedStatements(d.options.Tokens, d.options.Key != nil) {
		p.SendPrepare(st.name, st.sql, st.params)
	}
	p.SendPipelineSync()
	optional := optionalSettings(conn, s)
	for _, o := range optional {
		query := setQuery
		if o.name == deadlockTimeout {
			query = allowedQuery
		}
		p.SendQueryParams(query, [][]byte{[]byte(o.name), []byte(o.value)}, nil, nil, nil)
		p.SendPipelineSync()
	}
	if err := p.Flush(); err != nil {
		return errors.Join(err, p.Close())
	}
	row, err := readSetUp(p, 1+len(optional))
	if err = errors.Join(err, p.Close()); err != nil {
		return err
	}
	return d.checkFacts(conn, s, row)
}

// readSetUp reads the answers up to the given number of syncs and returns the
// row of factsQuery. An error after the first sync means that the server does
// not know a setting, and is ignored.
func readSetUp(p *pgconn.Pipeline, syncs int) (row [][]byte, err error) {
	for n := 0; n < syncs; {
		results, e := p.GetResults()
		var answer *pgconn.PgError
		switch {
		case e != nil && errors.As(e, &answer):
			if n == 0 {
				err = errors.Join(err, e)
			}
			continue
		case e != nil:
			return nil, errors.Join(err, e)
		}
		switch r := results.(type) {
		case nil:
			return nil, errors.Join(err, errAnswer)
		case *pgconn.PipelineSync:
			n++
		case *pgconn.ResultReader:
			answer := r.Read()
			if answer.Err != nil && n == 0 {
				err = errors.Join(err, answer.Err)
			}
			if len(answer.Rows) == 1 && len(answer.Rows[0]) == facts {
				row = answer.Rows[0]
			}
		}
	}
	return row, err
}

// checkFacts refuses servers without safe locks.
func (d *Driver) checkFacts(conn *pgconn.PgConn, s *session, f [][]byte) error {
	if len(f) != facts || len(f[0]) != 4 || len(f[1]) != 1 || len(f[2]) != 4 || len(f[3]) != 8 {
		return errAnswer
	}
	s.pid = binary.BigEndian.Uint32(f[0])
	timeout := time.Duration(binary.BigEndian.Uint64(f[3])) * time.Millisecond
	switch version := binary.BigEndian.Uint32(f[2]); {
	case s.pid != conn.PID() && !d.server.pooled:
		return ErrPooler
	case version < 140000:
		return fmt.Errorf("the server is PostgreSQL %d, older than 14: %w", version/10000, errors.ErrUnsupported)
	case f[1][0] != 0 && d.server.known: // a failover behind the address is in progress
		return fmt.Errorf("%w: the server is now a read replica", driver.ErrUnavailable)
	case f[1][0] != 0:
		return fmt.Errorf("the server is a read replica, which has separate advisory locks: %w", errors.ErrUnsupported)
	case timeout != s.ttl:
		return fmt.Errorf("idle_session_timeout is %v on the server instead of %v: %w", timeout, s.ttl, errors.ErrUnsupported)
	case d.options.Tokens == TokensDurable && string(f[4]) == "off":
		return fmt.Errorf("durable tokens with synchronous_commit=off: %w", errors.ErrUnsupported)
	case f[6] != nil:
		return fmt.Errorf("the role may not execute pg_catalog.%s: %w", f[6], fs.ErrPermission)
	}
	return nil
}

// keepAlive enables TCP keep-alives, so that an idle connection to a dead host
// fails.
func keepAlive(conn net.Conn, ttl time.Duration) {
	if layered, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = layered.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		pause := min(max(ttl/6, time.Second), 15*time.Second)
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: pause, Interval: pause, Count: 3})
	}
}

// maxName is the length of application_name that a server keeps.
const maxName = 63

// processLabel returns the name under which the sessions of this process appear
// on the server, without the id of each session.
func processLabel(application string) string {
	if application == "" {
		application = "dsync"
	}
	host, _ := os.Hostname()
	label := []byte(fmt.Sprintf("%s#%s#%d", application, host, os.Getpid()))
	for i, c := range label {
		if c < ' ' || c > '~' {
			label[i] = '?' // as the server does
		}
	}
	return string(label[:min(len(label), maxName-1-2*idBytes)]) + "#"
}

const idBytes = 8

func newID() string {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// serverFacts are the facts found when the driver is opened.
type serverFacts struct {
	pooled bool // behind a pooler in session mode, which drops settings of a new connection
	known  bool // the driver is open: the address has led to a primary
}
