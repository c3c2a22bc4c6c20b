package agent

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The versions of Redisson that the tests run with: an old version, a version
// that detects the sharded channels of a cluster only by chance, a version that
// lets readers' keys expire while it renews their lock (as 3.44 to 3.52 do),
// and the newest version at the time of writing.
const (
	Old    = "3.19.1"
	Middle = "3.27.2"
	Lapses = "3.52.0"
	New    = "4.7.0"
)

// The versions that introduced a change visible to a Go program that shares
// locks with Redisson.
const (
	Fenced = "3.19.0" // RFencedLock exists
	// sharded channels in a cluster, if the client happens to notice that the
	// cluster supports them
	Sharded    = "3.22.0"
	SeesShards = "3.28.0" // every client sees them
	// a waiter of the fair lock sends another request at the end of a lease
	// that was renewed; in earlier versions, it may sleep forever
	AsksAgain = "3.32.0"
)

// variable is the environment variable that names the only version to run with.
const variable = "REDISSON"

// Versions returns the versions to run with: its arguments, or the single
// version in the environment variable REDISSON.
func Versions(versions ...string) []string {
	if version := os.Getenv(variable); version != "" {
		return []string{version}
	}
	return versions
}

var threeNumbers = regexp.MustCompile(`^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$`)

// Before reports whether a version is older than another version. A version
// consists of three numbers.
func Before(version, other string) bool { return slices.Compare(numbers(version), numbers(other)) < 0 }

func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // check has verified the numbers
		all = append(all, n)
	}
	return all
}

// check rejects a string that is not a version of Redisson with which the Java
// program can be built.
func check(version string) error {
	if !threeNumbers.MatchString(version) {
		return fmt.Errorf("%q is not a version of Redisson: these have three numbers, such as %s", version, New)
	}
	if Before(version, Fenced) {
		return fmt.Errorf("the Java program needs RFencedLock, which came with Redisson %s: %s does not have it", Fenced, version)
	}
	return nil
}
