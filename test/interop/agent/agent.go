// Package agent builds the Java program of the interop tests and returns its
// command line. The program executes on Redisson the commands that it reads
// from its standard input.
package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// ErrNoJava is returned if Java or Maven is missing on this machine.
var ErrNoJava = errors.New("java and mvn are needed (packages openjdk-17-jdk-headless and maven)")

// Command builds the program with a version of Redisson, unless it has been
// built before, and returns the command line that runs it.
func Command(ctx context.Context, version string) ([]string, error) {
	java, err1 := exec.LookPath("java")
	maven, err2 := exec.LookPath("mvn")
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJava, err)
	}
	if err := check(version); err != nil {
		return nil, err
	}
	dir, err := project()
	if err != nil {
		return nil, err
	}
	target := filepath.Join(dir, "target", version)
	jar, classpath := filepath.Join(target, "interop-1.jar"), filepath.Join(target, "classpath")
	if !newer(jar, filepath.Join(dir, "pom.xml"), filepath.Join(dir, "src/main/java/interop/Agent.java")) {
		cmd := exec.CommandContext(ctx, maven, "-q", "-B", "-Dredisson.version="+version, "package")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil && unpublished(version, out) {
			return nil, fmt.Errorf("there is no Redisson %s: https://repo.maven.apache.org/maven2/org/redisson/redisson lists the versions", version)
		}
		if err != nil {
			return nil, fmt.Errorf("mvn package on Redisson %s: %w\n%s", version, err, bytes.TrimSpace(out))
		}
	}
	libraries, err := os.ReadFile(classpath)
	if err != nil {
		return nil, err
	}
	path := jar + string(filepath.ListSeparator) + strings.TrimSpace(string(libraries))
	return []string{java, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-cp", path, "interop.Agent"}, nil
}

// unpublished reports whether the registry has told Maven, now or earlier, that
// it does not have a version.
func unpublished(version string, out []byte) bool {
	artifact := "org.redisson:redisson:jar:" + version
	return bytes.Contains(out, []byte("Could not find artifact "+artifact)) || bytes.Contains(out, []byte(artifact+" was not found in"))
}

// project returns the directory of the Java project, which is next to the
// directory of this file.
func project() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("the sources of the Java program cannot be found, because this was built with -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "..", "java"), nil
}

// newer reports whether file exists and is not older than any of its sources.
func newer(file string, sources ...string) bool {
	built, err := os.Stat(file)
	if err != nil {
		return false
	}
	for _, source := range sources {
		info, err := os.Stat(source)
		if err != nil || info.ModTime().After(built.ModTime()) {
			return false
		}
	}
	return true
}
