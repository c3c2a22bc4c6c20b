package recipes

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/go-dsync/dsync"
)

// Serve answers requests until ctx ends, for example on SIGTERM with
// signal.NotifyContext, and then shuts down in the right order.
func Serve(ctx context.Context, client *dsync.Client, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }() // ends with Shutdown
	select {
	case err := <-failed:
		return errors.Join(err, client.Close(ctx))
	case <-ctx.Done():
	}
	// First end the work, while its locks are still renewed. Then close the
	// client, which frees the locks of unfinished work.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	err := server.Shutdown(grace)
	<-failed
	return errors.Join(err, client.Close(ctx))
}

// Ready is the handler of a readiness probe. A liveness probe must not use
// it: a restart of the process does not bring the backend back.
func Ready(client *dsync.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := client.Ping(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}
