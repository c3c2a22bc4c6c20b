package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
)

// urlVariable is where the URL comes from if no flag says one.
const urlVariable = "DSYNC_URL"

// addURLFlags adds the flags by which a command finds its backend.
func addURLFlags(c *cobra.Command) {
	c.Flags().String("url", "", "`URL` of the backend, without a password, which others could see ($"+urlVariable+" if it is not given)")
	c.Flags().String("url-file", "", "`FILE` whose first line is the URL of the backend")
}

// backendURL returns the URL of the backend of a command.
func backendURL(c *cobra.Command) (string, error) {
	flag, _ := c.Flags().GetString("url")
	file, _ := c.Flags().GetString("url-file")
	switch {
	case flag != "" && file != "":
		return "", usageError{errors.New("--url and --url-file do not go together")}
	case file != "":
		return urlInFile(file)
	case flag != "":
		return flag, checkVisible("--url", flag)
	}
	raw := os.Getenv(urlVariable)
	if raw == "" {
		return "", usageError{fmt.Errorf("the URL of a backend is needed: $%s, --url-file or --url", urlVariable)}
	}
	return raw, checkURL("$"+urlVariable, raw)
}

func urlInFile(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", usageError{fmt.Errorf("--url-file: %w", err)}
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	raw := strings.TrimSpace(first)
	return raw, checkURL("--url-file", raw)
}

func checkURL(where, raw string) error {
	if _, err := driver.ParseURL(raw); err != nil {
		return usageError{fmt.Errorf("%s: %w", where, err)}
	}
	return nil
}

// checkVisible is checkURL for a URL on the command line, which other users of the machine can see.
func checkVisible(where, raw string) error {
	u, err := driver.ParseURL(raw)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", where, err)}
	}
	password := ""
	if u.User != nil {
		password, _ = u.User.Password()
	}
	if cmp.Or(password, u.Param("password", ""), u.Param("sentinel_password", "")) != "" {
		return usageError{fmt.Errorf("%s has a password, which other users of this machine can see: give the URL as $%s or --url-file", where, urlVariable)}
	}
	return nil
}
