package redisson

import (
	"fmt"
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// FuzzAnswers has a server return arbitrary answers to the scripts.
func FuzzAnswers(f *testing.F) {
	f.Add(false, []byte{1, 0})
	f.Add(false, []byte{8, 2, 1, 1, 1, 1, 8, 3, 1, 100, 0, 0, 8, 2, 3, 1, 'x', 3, 1, '1'})
	f.Add(true, []byte{5, 1, 2, 0, 255, 255, 255, 255, 255, 255, 255, 255, 8, 7})
	f.Fuzz(func(t *testing.T, fair bool, data []byte) {
		address := testenv.HostileRedis(t, data)
		drivertest.SurviveAnswers(t, fmt.Sprintf("redisson://%s?fair=%t", address, fair))
	})
}
