package agent

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The versions of Redisson that the tests run with: an old one, one that finds
// out by chance whether a cluster has sharded channels, one that lets keys of
// readers lapse while it renews their lock (as 3.44 to 3.52 do), and the newest
// that they were written for.
const (
	Old    = "3.19.1"
	Middle = "3.27.2"
	Lapses = "3.52.0"
	New    = "4.7.0"
)

// The versions in which something changed that a Go program beside Redisson
// notices.
const (
	Fenced = "3.19.0" // RFencedLock is there
	// sharded channels in a cluster, if the client happens to see that the
	// cluster has them
	Sharded    = "3.22.0"
	SeesShards = "3.28.0" // every client sees that
	// a waiter of the fair lock asks again at the end of a lease that was
	// renewed; before, it may sleep for ever
	AsksAgain = "3.32.0"
)

// variable names the only version to run with.
const variable = "REDISSON"

// Versions returns the versions to run with: these, or the one that the
// environment names by REDISSON.
func Versions(versions ...string) []string {
	if version := os.Getenv(variable); version != "" {
		return []string{version}
	}
	return versions
}

var threeNumbers = regexp.MustCompile(`^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$`)

// Before reports whether a version, of three numbers, is older than another
// one.
func Before(version, other string) bool { return slices.Compare(numbers(version), numbers(other)) < 0 }

func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // check has seen that
		all = append(all, n)
	}
	return all
}

// check refuses what is no version that the Java program can be built on.
func check(version string) error {
	if !threeNumbers.MatchString(version) {
		return fmt.Errorf("%q is no version of Redisson: those have three numbers, as %s", version, New)
	}
	if Before(version, Fenced) {
		return fmt.Errorf("the Java program needs RFencedLock, which came with Redisson %s: %s does not have it", Fenced, version)
	}
	return nil
}
