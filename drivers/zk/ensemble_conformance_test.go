//go:build long

package zk_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// A release stays without an answer for 5 s here in about one of three runs on a busy machine, which is not understood yet.
func TestConformanceEnsemble(t *testing.T) { conform(t, true, testenv.ZooKeeperEnsemble(t, 3)...) }
