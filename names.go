package dsync

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// newID returns a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

const maxName = 1024

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxName:
		return fmt.Errorf("the name is %d bytes long, more than %d", len(name), maxName)
	case !utf8.ValidString(name):
		return errors.New("the name is not valid UTF-8")
	case strings.IndexByte(name, 0) >= 0:
		return errors.New("the name contains NUL")
	}
	return nil
}
