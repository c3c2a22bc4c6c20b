package redisdriver

import (
	"fmt"
	"strings"
	"testing"
)

func TestCommandAt(t *testing.T) {
	at := func(sha string, line int) string {
		return fmt.Sprintf("The user executing the script can't run this command or subcommand script: %s, on @user_script:%d.", sha, line)
	}
	s := NewScript("local call = redis.call\nlocal a = {call('PTTL', KEYS[1]), redis.call('GET', KEYS[2])}\nreturn call(ARGV[1], ARGV[2], '0')\n")
	for text, want := range map[string]string{
		at(s.SHA, 2): "PTTL or GET",
		at(s.SHA, 3): "PUBLISH or SPUBLISH",
		"Error running script (call to f_" + s.SHA + "): @user_script:2: @user_script: 2: The user": "PTTL or GET",
		at(s.SHA, 0):                          "a command in a script",
		at(s.SHA, 9):                          "a command in a script",
		at(strings.Repeat("0", 40), 1):        "a command in a script",
		"The user executing the script can't": "a command in a script",
	} {
		if got := commandAt(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
