package drivertest

import "github.com/go-dsync/dsync/internal/testenv"

// OrderGroups returns more and the groups of the suite whose results depend on
// the order of waiters. In the long form it returns nil, which means all
// groups.
func OrderGroups(more ...string) []string {
	return testenv.Briefly(append(more, "waiting", "contention", "wakeup", "order", "crossing", "inspect", "storm"), nil)
}

// ClusterGroups returns the groups of the suite whose results depend on the
// number of servers. In the long form it returns nil, which means all groups.
func ClusterGroups() []string {
	return testenv.Briefly([]string{"exclusion", "faults", "closing", "expiry", "loss", "refusal", "storm"}, nil)
}
