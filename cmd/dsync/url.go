package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
)

// urlVariable is where the URL of the backend comes from, unless a flag has it or names a file that has it: other users of a machine see
// the flags of a command.
const urlVariable = "DSYNC_URL"

// addURL gives a command the flags that backendURL reads.
func addURL(c *cobra.Command) {
	c.Flags().String("url", "", "`URL` of the backend, without a password ($"+urlVariable+" if it is not given)")
	c.Flags().String("url-file", "", "`FILE` with the URL of the backend")
}

// backendURL returns the URL of the backend: that of a flag, of a file, or of the environment. Errors are usageErrors without passwords.
func backendURL(c *cobra.Command) (string, error) {
	raw, _ := c.Flags().GetString("url")
	file, _ := c.Flags().GetString("url-file")
	from := "--url"
	switch {
	case raw != "" && file != "":
		return "", usageError{errors.New("--url and --url-file are two ways to say the same: give one")}
	case file != "":
		from = "--url-file"
		text, err := os.ReadFile(file)
		if err != nil {
			return "", usageError{fmt.Errorf("--url-file: %w", err)}
		}
		if raw = strings.TrimSpace(string(text)); raw == "" {
			return "", usageError{fmt.Errorf("--url-file: %s is empty: it has to contain the URL of a backend", file)}
		}
	case raw == "":
		from = "$" + urlVariable
		raw = os.Getenv(urlVariable)
	}
	if raw == "" {
		return "", usageError{errors.New("the URL of a backend is needed: $" + urlVariable + ", --url-file or --url")}
	}
	u, err := driver.ParseURL(raw)
	if err != nil {
		return "", usageError{fmt.Errorf("%s: %w", from, err)}
	}
	if u.User != nil && from == "--url" {
		if _, secret := u.User.Password(); secret {
			return "", usageError{errors.New("--url has a password, and all users of this machine can see the flags of a command: use $" +
				urlVariable + " or --url-file")}
		}
	}
	return raw, nil
}
