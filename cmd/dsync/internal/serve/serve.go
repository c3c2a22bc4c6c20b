package serve

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// tokenVariable holds the token for releases, unless a file has it.
const tokenVariable = "DSYNC_RELEASE_TOKEN"

// shortestToken is the minimum length that makes a token infeasible to guess.
const shortestToken = 16

func Command() *cobra.Command {
	var f cli.BackendFlags
	var s serveFlags
	c := &cobra.Command{
		Use:   "serve [PREFIX]",
		Short: "Serve a web page of the held locks",
		Long: `Serve serves a web page of the held names that begin with PREFIX: the holder of each, the time of the grant, and the waiters. The leader of an
election is the holder of its name. The page updates itself until Ctrl-C or TERM. Serve changes nothing.

Browsers load everything from this server. All pages share their requests to the backend: serve lists the names every --every, but at most
half of the time, queries the holders of at most 500 names per second, and sends nothing while no page is open. A page shows 100 names
and their total number. 100 pages can be open at a time, and 100,000 names are listed.

Anyone who can connect to the address sees the locks without a password, including other users of the machine. For an address that other
machines reach, give each name that browsers use for this server as --host. Requests with another name, and requests from pages of other
sites, are refused. There is no TLS. To serve other machines, run a proxy on this machine that speaks TLS and authenticates users, and
give its name as --host.

With --allow-release, users with the token can release locks, as "dsync release" does. The token has at least 16 characters, and is
in $DSYNC_RELEASE_TOKEN or in a file. This needs a loopback address, because the token would cross the network unencrypted.

Exit status
    0  ended by Ctrl-C or TERM
    1  the backend cannot be opened, or the address cannot be used
    2  the command line is wrong
    4  the backend cannot list names`,
		Example: `  export DSYNC_URL=etcd://etcd:2379/locks/
  dsync serve
  dsync serve --allow-release --token-file /run/secrets/dsync orders/`,
		Args: cli.AtMostOnePrefix,
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.check(); err != nil {
				return cli.Usage(err)
			}
			return f.WithBackend(c, func(b *cli.Backend) error { return s.serve(c, newBoard(b, cli.PrefixOf(args), s.every)) })
		},
	}
	f.Add(c)
	c.Flags().StringVar(&s.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to serve at")
	c.Flags().StringArrayVar(&s.names, "host", nil, "`NAME` that browsers use for this server (may be given more than once)")
	c.Flags().DurationVar(&s.every, "every", 2*time.Second, "pause between two lists, at least 1s")
	c.Flags().BoolVar(&s.allow, "allow-release", false, "let users with the token release locks")
	c.Flags().StringVar(&s.file, "token-file", "", "`FILE` with the token for releases (default $"+tokenVariable+")")
	return c
}

// serveFlags are the flags of `serve`, and the values that check derives from
// them.
type serveFlags struct {
	listen, file string
	names        []string
	every        time.Duration
	allow        bool

	address *net.TCPAddr
	hosts   map[string]bool
	token   string
}

func (s *serveFlags) check() (err error) {
	if s.every < time.Second {
		return errors.New("--every must be at least 1s")
	}
	if s.address, err = net.ResolveTCPAddr("tcp", s.listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	s.hosts = map[string]bool{}
	for _, name := range s.names {
		s.hosts[hostOf(name)] = true
	}
	if s.address.IP.IsLoopback() {
		for _, name := range []string{"localhost", "127.0.0.1", "::1", s.address.IP.String()} {
			s.hosts[name] = true
		}
	} else if s.allow {
		return fmt.Errorf("--listen: %s is not a loopback address, which --allow-release needs: the token would cross the network unencrypted", s.listen)
	} else if len(s.hosts) == 0 {
		return fmt.Errorf("--listen: other machines can reach %s and see all locks: to allow that, give the name that browsers use as --host NAME", s.listen)
	}
	if !s.allow {
		if s.file != "" {
			return errors.New("--token-file needs --allow-release")
		}
		return nil
	}
	return s.readToken()
}

// readToken reads the token from its file or from the environment. Its errors
// never contain the token.
func (s *serveFlags) readToken() error {
	from, text := "$"+tokenVariable, os.Getenv(tokenVariable)
	if s.file != "" {
		raw, err := os.ReadFile(s.file)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		from, text = "--token-file", string(raw)
	}
	if s.token = strings.TrimSpace(text); len(s.token) < shortestToken {
		return fmt.Errorf("%s: --allow-release needs a token of at least %d characters, in $%s or in --token-file", from, shortestToken, tokenVariable)
	}
	return nil
}

// serve runs the server until the command's context ends.
func (s *serveFlags) serve(c *cobra.Command, b *board) error {
	listener, err := net.ListenTCP("tcp", s.address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	p := &page{board: b, hosts: s.hosts, token: s.token, log: log.New(c.OutOrStdout(), "", 0), places: make(chan struct{}, mostPages), over: ctx}
	server := &http.Server{
		Handler: p.handler(), ReadTimeout: askPatience, WriteTimeout: 2 * askPatience, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(c.ErrOrStderr(), "dsync: ", 0),
	}
	p.log.Printf("http://%s/ shows %s", listener.Addr(), b.backend.URL)
	var work sync.WaitGroup
	work.Go(func() { // ends when ctx ends
		if err := b.run(ctx); err != nil {
			cancel(err)
		}
	})
	work.Go(func() { cancel(server.Serve(listener)) }) // ended by Shutdown
	<-ctx.Done()
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), cli.CloseLimit)
	defer stop()
	if server.Shutdown(ending) != nil {
		server.Close()
	}
	work.Wait()
	if c.Context().Err() != nil {
		return nil // Ctrl-C or TERM is the usual end of a server
	}
	return context.Cause(ctx)
}
