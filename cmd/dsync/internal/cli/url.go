package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
)

// urlVariable contains the URL of the backend, unless a flag specifies the URL
// or a file with it. Other users of a machine can see the flags of a command.
const URLVariable = "DSYNC_URL"

// AddURL gives a command the flags that BackendURL reads.
func AddURL(c *cobra.Command) {
	c.Flags().String("url", "", "`URL` of the backend, without a password (default $"+URLVariable+")")
	c.Flags().String("url-file", "", "`FILE` with the URL of the backend; if the URL has a password, not all users may read the file")
}

// BackendURL returns the URL of the backend from a flag, a file or the
// environment. Its errors are UsageErrors without passwords.
func BackendURL(c *cobra.Command) (string, error) {
	raw, _ := c.Flags().GetString("url")
	file, _ := c.Flags().GetString("url-file")
	from := "--url"
	switch {
	case raw != "" && file != "":
		return "", Usage(errors.New("--url and --url-file exclude each other: give one"))
	case file != "":
		from = "--url-file"
		var err error
		if raw, err = readURL(file); err != nil {
			return "", Usage(fmt.Errorf("--url-file: %w", err))
		}
	case raw == "":
		from = "$" + URLVariable
		raw = os.Getenv(URLVariable)
	}
	if raw == "" {
		return "", Usage(errors.New("the URL of a backend is missing: $" + URLVariable + ", --url-file or --url"))
	}
	u, err := driver.ParseURL(raw)
	if err != nil {
		return "", Usage(fmt.Errorf("%s: %w", from, err))
	}
	if from == "--url" && hasPassword(u) {
		return "", Usage(errors.New("--url has a password, and all users of this machine can see the flags of a command: use $" +
			URLVariable + " or --url-file"))
	}
	return raw, nil
}

// ArgumentURL returns the URL given as an argument, or otherwise the result of
// backendURL.
func ArgumentURL(c *cobra.Command, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return BackendURL(c)
	case len(args) > 1:
		return "", fmt.Errorf("%s takes one URL", c.CommandPath())
	case c.Flags().Changed("url") || c.Flags().Changed("url-file"):
		return "", errors.New("the URL is given twice")
	}
	return args[0], checkVisible(args[0])
}

// checkVisible returns an error for an argument with a URL that other users of
// the machine must not see.
func checkVisible(raw string) error {
	u, err := driver.ParseURL(raw)
	if err != nil {
		return err
	}
	if hasPassword(u) {
		return errors.New("the URL has a password, and all users of this machine can see the arguments of a command: use $" + URLVariable + " or --url-file")
	}
	return nil
}

// readURL reads a URL from a file. It refuses a URL with a password if every
// user may read or change the file. Access by a group is allowed because
// services get their secrets that way.
func readURL(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	raw := strings.TrimSpace(string(text))
	if raw == "" {
		return "", fmt.Errorf("%s is empty: it must contain the URL of a backend", file)
	}
	const others = 0o006
	mode := info.Mode()
	if runtime.GOOS == "windows" || !mode.IsRegular() || mode.Perm()&others == 0 {
		// A pipe connects only two processes. Windows has other permissions.
		return raw, nil
	}
	if u, err := driver.ParseURL(raw); err == nil && hasPassword(u) {
		return "", fmt.Errorf("%s has a URL with a password, and its mode %04o lets all users of this machine read it: chmod o= %s (in Kubernetes, defaultMode: 0440)",
			file, mode.Perm(), file)
	}
	return raw, nil
}

// hasPassword reports whether a URL has a password of any kind.
func hasPassword(u *driver.URL) bool {
	if u.User != nil {
		if _, given := u.User.Password(); given {
			return true
		}
	}
	for _, part := range []string{"from", "to"} { // of a migration
		if below, err := driver.ParseURL(u.Param(part, "")); err == nil && hasPassword(below) {
			return true
		}
	}
	return u.Has("password") || u.Has("sentinel_password") || u.Has("sslpassword")
}
