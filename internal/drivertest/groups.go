package drivertest

import "github.com/go-dsync/dsync/internal/testenv"

// OrderGroups returns the groups of the suite that come out differently with
// another order of waiters, and more. In the long form it returns nil, for all
// groups.
func OrderGroups(more ...string) []string {
	return testenv.Briefly(append(more, "waiting", "contention", "wakeup", "order", "crossing", "inspect", "storm"), nil)
}

// ClusterGroups returns the groups of the suite that come out differently with
// several servers in place of one. In the long form it returns nil, for all
// groups.
func ClusterGroups() []string {
	return testenv.Briefly([]string{"exclusion", "faults", "closing", "expiry", "loss", "refusal", "scale", "storm"}, nil)
}
