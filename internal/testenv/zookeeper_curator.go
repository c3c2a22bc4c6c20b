package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// curatorJar is the library of Debian's package libcurator-recipes-java. Its manifest names the others.
const curatorJar = "/usr/share/java/curator-recipes.jar"

// Curator compiles a Java program that uses Debian's Curator, and returns the command line that runs its class.
func Curator(tb testing.TB, source, class string) []string {
	tb.Helper()
	if _, err := os.Stat(curatorJar); err != nil {
		missing(tb, curatorJar, "libcurator-recipes-java")
	}
	return Java(tb, curatorJar, source, class)
}

// Java compiles a Java program, and returns the command line that runs its class.
func Java(tb testing.TB, classpath, source, class string) []string {
	tb.Helper()
	java, javac := need(tb, "java", "default-jre-headless"), need(tb, "javac", "default-jdk-headless")
	dir := tb.TempDir()
	if out, err := exec.Command(javac, "-cp", classpath, "-d", dir, source).CombinedOutput(); err != nil {
		tb.Fatalf("javac: %v: %s", err, out)
	}
	return []string{java, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir + ":" + classpath, class}
}
