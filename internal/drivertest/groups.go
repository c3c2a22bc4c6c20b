package drivertest

import "github.com/go-dsync/dsync/internal/testenv"

// OrderGroups returns the groups of the suite that come out differently with
// another order of waiters. In the long form it returns nil, for all groups.
func OrderGroups() []string {
	return testenv.Briefly([]string{"waiting", "contention", "wakeup", "order", "crossing", "inspect", "storm"}, nil)
}

// ClusterGroups returns the groups of the suite that come out differently with
// several servers in place of one. In the long form it returns nil, for all
// groups.
func ClusterGroups() []string {
	return testenv.Briefly([]string{"exclusion", "faults", "closing", "expiry", "loss", "refusal", "scale", "storm"}, nil)
}
