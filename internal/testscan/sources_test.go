package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// literalPassword finds URLs with a password that is written out. One that is put in, by + or %s, comes from testenv.
var literalPassword = regexp.MustCompile(`://[^/@"'` + "`" + ` ]*:([^/@"'` + "`" + ` ]{2,})@`)

// exempt are tests of what a URL looks like, which look for passwords of their own.
var exempt = []string{"driver/url_test.go", "internal/testscan/sources_test.go"}

// TestNoPasswordIsWrittenOut: the scan could not find it.
func TestNoPasswordIsWrittenOut(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		name, _ := filepath.Rel(root, path)
		for _, e := range exempt {
			if filepath.ToSlash(name) == e {
				return nil
			}
		}
		text, err := os.ReadFile(path)
		for _, found := range written(string(text)) {
			t.Errorf("%s: the password in %q is not from testenv.Password", name, found)
		}
		return err
	})
	if err != nil || files < 50 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

func written(text string) []string {
	var all []string
	for _, found := range literalPassword.FindAllStringSubmatch(text, -1) {
		if found[1] != "%s" && found[1] != "PASSWORD" {
			all = append(all, found[0])
		}
	}
	return all
}

func TestWritten(t *testing.T) {
	for text, want := range map[string]bool{
		`"redisson://user:abc@h"`:               true,
		`"redisson://:abc@h"`:                   true,
		`"redisson://user:" + password + "@h"`:  false,
		`"redisson://user:%s@%s"`:               false,
		`"redisson://h:6379/0"`:                 false,
		`"redisson://user@h:6379", "a:b@c.org"`: false,
	} {
		if got := written(text); len(got) > 0 != want {
			t.Errorf("%s: got %q, want that it is found: %t", text, got, want)
		}
	}
}
