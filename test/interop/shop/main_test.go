package main

import (
	"bytes"
	"errors"
	"os"
	"regexp"
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
		for _, want := range []string{
			`\nwith lock: issued=50 refused=50 remaining=0\n`,
			`\nprices without lock: changes=40 reads=\d+ torn=[1-9]\d*\n`,
			`\nprices with lock: changes=40 reads=[1-9]\d* torn=0\n$`,
		} {
			if err != nil || !regexp.MustCompile(want).MatchString(out.String()) {
				t.Errorf("Redisson %s: got %q, %v, want %s", version, out.String(), err, want)
			}
		}
	}
}
