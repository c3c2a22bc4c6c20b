package redlock

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// FuzzAnswers has the nodes return arbitrary answers.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{1, 0}, []byte{}, []byte{4, 1})
	f.Add([]byte{5, 1, 2, 0, 255, 255, 255, 255, 255, 255, 255, 255, 8, 7}, []byte{4, 1, 1, 1}, []byte{0, 0, 3, 2, 'O', 'K'})
	f.Fuzz(func(t *testing.T, one, two, three []byte) {
		nodes := []string{testenv.HostileRedis(t, one), testenv.HostileRedis(t, two), testenv.HostileRedis(t, three)}
		drivertest.SurviveAnswers(t, "redlock://"+strings.Join(nodes, ",")+settled)
	})
}
