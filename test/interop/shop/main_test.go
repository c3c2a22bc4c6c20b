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
	for _, version := range agent.Versions(agent.New, agent.Old) {
		_, err := agent.Command(t.Context(), version)
		if errors.Is(err, agent.ErrNoJava) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = run(t.Context(), testenv.Redis(t).Addr, version, &out)
		const want = "\nwith lock: issued=50 refused=50 remaining=0\n"
		if err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("Redisson %s: got %q, %v, want %q at the end", version, out.String(), err, want)
		}
	}
}
