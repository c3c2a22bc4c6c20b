package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

func TestShop(t *testing.T) {
	server := testenv.Redis(t)
	for _, version := range []string{agent.New, agent.Old} {
		var out bytes.Buffer
		err := run(t.Context(), server.Addr, version, &out)
		if errors.Is(err, agent.ErrNoJava) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		const want = "\nwith lock: issued=50 refused=50 remaining=0\n"
		if err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("Redisson %s: got %q, %v, want %q at the end", version, out.String(), err, want)
		}
	}
}
