package redisdriver

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Script is a Lua script and the digest under which a server stores it.
type Script struct{ Text, SHA string }

// texts are the texts of all scripts, by SHA.
var texts = make(map[string]string)

// NewScript is called during program initialization.
func NewScript(text string) *Script {
	sum := sha1.Sum([]byte(text))
	s := &Script{Text: text, SHA: hex.EncodeToString(sum[:])}
	texts[s.SHA] = text
	return s
}

// Lua returns the text of a file, without the suffix in its name: a script, or
// functions of scripts.
func Lua(files embed.FS, name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Load returns the command that gives the script to a server.
func (s *Script) Load(b rueidis.Builder) rueidis.Completed {
	return b.ScriptLoad().Script(s.Text).Build()
}

// Call is one run of a script.
type Call struct {
	Script     *Script
	Keys, Args []string
}

// Call returns a run of the script.
func (s *Script) Call(keys []string, args ...string) Call { return Call{s, keys, args} }

// Command returns the command that runs the script by its digest.
func (c Call) Command(b rueidis.Builder) rueidis.Completed {
	return b.Evalsha().Sha1(c.Script.SHA).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
}

// CommandByText returns the command that runs the script on a server that does
// not know the digest, and makes the server keep the script.
func (c Call) CommandByText(b rueidis.Builder) rueidis.Completed {
	return b.Eval().Script(c.Script.Text).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
}

var (
	placeInScript   = regexp.MustCompile(`user_script: ?(\d+)`)
	shaOfScript     = regexp.MustCompile(`[0-9a-f]{40}`)
	commandOfScript = regexp.MustCompile(`call\('([A-Z]+)'`)
)

// commandAt returns the commands in the line of a script that a server error
// reports.
func commandAt(text string) string {
	const unknown = "a command in a script"
	script, known := texts[shaOfScript.FindString(text)]
	place := placeInScript.FindStringSubmatch(text)
	if !known || place == nil {
		return unknown
	}
	lines := strings.Split(script, "\n")
	n, err := strconv.Atoi(place[1])
	if err != nil || n < 1 || n > len(lines) {
		return unknown
	}
	var commands []string
	for _, found := range commandOfScript.FindAllStringSubmatch(lines[n-1], -1) {
		commands = append(commands, found[1])
	}
	if commands == nil { // the command is not in the text of the script
		return "PUBLISH or SPUBLISH"
	}
	return strings.Join(commands, " or ")
}
