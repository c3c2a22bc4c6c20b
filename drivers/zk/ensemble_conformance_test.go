//go:build long

package zk_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestConformanceEnsemble(t *testing.T) { conform(t, testenv.ZooKeeperEnsemble(t, 3)...) }
