package etcd

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// modelMistake is a possible mistake in the code that determines which client
// holds the lock. PLANTED stands for the condition that this mistake is active.
type modelMistake struct {
	name     string
	file     string
	old, new string
	model    string // the case that finds the mistake
	runs     int    // of a search, if it is not found in a small case or at random
	wrong    []string
}

// All modelMistakes are planted in one copy of the driver. Each run activates
// one of them. When the driver changes, its mistakes must be planted again: a
// missing or ambiguous text is a failure.
var modelMistakes = []modelMistake{
	{
		name: "a view from before the watch broke counts",
		file: "feed.go", model: "elections", runs: 10000, wrong: []string{modelAsleep, modelNotFirst},
		old: `if w.forget(); w.active() {`,
		new: `if !PLANTED {
			w.forget()
		}
		if w.active() {`,
	},
	{
		name: "a view that was requested before the watch began counts",
		file: "feed.go", model: "two of a client arrive", wrong: []string{modelAsleep, modelNotFirst},
		old: `if f.since > w.asked ||`,
		new: `if !PLANTED && f.since > w.asked ||`,
	},
	{
		name: "events that arrive during a look are forgotten",
		file: "feed.go", model: "arrivals", wrong: []string{modelAsleep},
		old: `range f.recent {`,
		new: `range f.recent[:map[bool]int{true: 0, false: len(f.recent)}[PLANTED]] {`,
	},
	{
		name: "a waiter that joins a watch that has begun does not look",
		file: "feed.go", model: "two of a client arrive", wrong: []string{modelAsleep},
		old: `			signal(w.wake)
			return true`,
		new: `			if !PLANTED {
				signal(w.wake)
			}
			return true`,
	},
	{
		name: "a waiter that can no longer rely on its view does not look",
		file: "feed.go", model: "seal", wrong: []string{modelAsleep},
		old: `	case drops:
		w.forget()
		signal(w.wake)`,
		new: `	case drops:
		if w.forget(); !PLANTED {
			signal(w.wake)
		}`,
	},
	{
		name: "the key before is put again, which counts as its end",
		file: "wait.go", model: "mark", wrong: []string{modelNotFirst},
		old: `case i < 0, e.Type == mvccpb.PUT,`,
		new: `case i < 0, !PLANTED && e.Type == mvccpb.PUT,`,
	},
	{
		name: "the end of an earlier key of the same name counts",
		file: "wait.go", model: "rounds", wrong: []string{modelNotFirst, modelFallen},
		old: `case e.Kv.ModRevision <= v.revision:`,
		new: `case !PLANTED && e.Kv.ModRevision <= v.revision:`,
	},
	{
		name: "the end of the nearest key before is enough",
		file: "wait.go", model: "cancels", wrong: []string{modelNotFirst},
		old: `if v.before = slices.Delete(v.before, i, i+1); len(v.before) > 0 {`,
		new: `if v.before = slices.Delete(v.before, i, i+1); len(v.before) > 0 && !(PLANTED && i == 0) {`,
	},
	{
		name: "the end of the nearest key is enough when no other key is known",
		file: "wait.go", model: "crowd", wrong: []string{modelNotFirst},
		old: `, !v.all:`,
		new: `, !PLANTED && !v.all:`,
	},
	{
		name: "a waiter that watches only the nearest key is not notified of the seal",
		file: "wait.go", model: "seal before many", wrong: []string{modelAsleep},
		old: `{dir: sealKey(dir), ofRecord: true}}`,
		new: `{dir: sealKey(dir), ofRecord: true}}[:map[bool]int{true: 1, false: 2}[PLANTED]]`,
	},
	{
		name: "a look treats the nearest key as present after it has gone",
		file: "wait.go", model: "crowd that waits for the nearest", wrong: []string{modelAsleep},
		old: `clientv3.Compare(created, ">", 0)`,
		new: `clientv3.Compare(created, ">", map[bool]int{true: -1, false: 0}[PLANTED])`,
	},
	{
		name: "a look treats the nearest key as present after it was put again further back",
		file: "wait.go", model: "crowd that waits for the nearest", wrong: []string{modelAsleep},
		old: `clientv3.Compare(created, "<", h.revision)`,
		new: `clientv3.Compare(created, "<", h.revision+map[bool]int64{true: 1000, false: 0}[PLANTED])`,
	},
	{
		name: "a waiter keeps listening to a key that has gone",
		file: "feed.go", model: "crowd", wrong: []string{modelAsleep},
		old: `if w.listen(ranges); !w.active() {`,
		new: `if !PLANTED || len(w.feeds) == 0 {
		w.listen(ranges)
	}
	if !w.active() {`,
	},
	{
		name: "a full page counts as all keys",
		file: "wait.go", model: "crowd", wrong: []string{modelNotFirst},
		old: `record: r, all: !more}`,
		new: `record: r, all: PLANTED || !more}`,
	},
	{
		name: "the token is the revision of the put, not of the event",
		file: "wait.go", model: "queue", wrong: []string{modelNotFirst},
		old: `, w.first)`,
		new: `, map[bool]int64{true: h.revision, false: w.first}[PLANTED])`,
	},
	{
		name: "the token ignores a mark that the view shows",
		file: "wait.go", model: "mark in a queue", wrong: []string{modelFallen},
		old: `h.tokenFrom(w.view.record`,
		new: `h.tokenFrom(map[bool]record{false: w.view.record}[PLANTED]`,
	},
	{
		name: "a hold that is passed keeps its token",
		file: "lease.go", model: "pass", wrong: []string{modelFallen},
		old: `revision := o.answer.Header.Revision`,
		new: `revision := map[bool]int64{true: h.token, false: o.answer.Header.Revision}[PLANTED]`,
	},
	{
		name: "a pass goes to a key that is not there",
		file: "lease.go", model: "pass and faults", wrong: []string{modelTwo, modelNotFirst, modelError, modelAsleep, modelLeft, modelFallen},
		old: `if !o.answer.Succeeded {`,
		new: `if !PLANTED && !o.answer.Succeeded {`,
	},
	{
		name: "a mark after a pass looks like a pass",
		file: "lease.go", model: "pass and a mark", wrong: []string{modelFallen},
		old: `v.Pass = 0`,
		new: `v.Pass *= map[bool]int{true: 1}[PLANTED]`,
	},
	{
		name: "a look also counts the keys behind",
		file: "wait.go", model: "three arrivals", wrong: []string{modelAsleep, modelLeft},
		old: `clientv3.WithMaxCreateRev(h.revision-1),`,
		new: `clientv3.WithMaxCreateRev(map[bool]int64{false: h.revision - 1}[PLANTED]),`,
	},
	{
		name: "a look does not check whether the waiter's key is there",
		file: "wait.go", model: "removals and arrivals", wrong: []string{modelNotFirst},
		old: `	case len(there) == 0:
`,
		new: `	case PLANTED:
	case len(there) == 0:
`,
	},
	{
		name: "the token after a look is the revision of the put",
		file: "wait.go", model: "readers", wrong: []string{modelNotFirst},
		old: `h.tokenFrom(r, token)`,
		new: `h.tokenFrom(r, map[bool]int64{true: h.revision, false: token}[PLANTED])`,
	},
	{
		name: "a writer does not count readers",
		file: "keys.go", model: "a writer behind readers", wrong: []string{modelNotFirst},
		old: `return isContender(dir, kv) && mode.Excludes(modeOf(dir, kv))`,
		new: `return isContender(dir, kv) && mode.Excludes(modeOf(dir, kv)) && !(PLANTED && modeOf(dir, kv) == driver.Read)`,
	},
	{
		name: "a reader ignores writers",
		file: "keys.go", model: "readers", wrong: []string{modelNotFirst},
		old: `return r.dir + "0"`,
		new: `return r.dir + map[bool]string{true: "x", false: "0"}[PLANTED]`,
	},
	{
		name: "all modes ignore readers",
		file: "acquire.go", model: "a writer between readers", wrong: []string{modelNotFirst},
		old: `forRead: h.rule().forRead}`,
		new: `forRead: PLANTED || h.rule().forRead}`,
	},
	{
		name: "a reader does not look when no key is before its own",
		file: "keys.go", model: "a reader is evicted", wrong: []string{modelNotFirst},
		old: `forRead: true, confirms: true`,
		new: `forRead: true, confirms: !PLANTED`,
	},
	{
		name: "the permits of others do not count",
		file: "permits.go", model: "permits", wrong: []string{modelTwo, modelNotFirst},
		old: `used += n`,
		new: `used += map[bool]int{false: n}[PLANTED]`,
	},
	{
		name: "the limit of the record does not count",
		file: "permits.go", model: "a limit is raised", wrong: []string{modelError},
		old: `limit = r.limit
	for`,
		new: `limit = map[bool]int{false: r.limit}[PLANTED]
	for`,
	},
	{
		name: "released permits wake no waiter",
		file: "wait.go", model: "permits", wrong: []string{modelAsleep},
		old: `if v.missing > 0 || len(v.before) > 0 {`,
		new: `if PLANTED || v.missing > 0 || len(v.before) > 0 {`,
	},
	{
		name: "a waiter for permits is not notified of the limit",
		file: "wait.go", model: "a limit is raised", wrong: []string{modelAsleep},
		old: `{dir: limitKey(dir), ofRecord: true}}`,
		new: `{dir: limitKey(dir), ofRecord: true}}[:map[bool]int{true: 1, false: 2}[PLANTED]]`,
	},
	{
		name: "a waiter for permits does not look when they may be free",
		file: "keys.go", model: "permits behind a writer give up", wrong: []string{modelTwo, modelNotFirst},
		old: `adds: true, confirms: true`,
		new: `adds: true, confirms: !PLANTED`,
	},
	{
		name: "a look does not see the seal",
		file: "wait.go", model: "seal", wrong: []string{modelAsleep},
		old: `	if r.sealed {
		return view{}, final{driver.ErrSealed}
	}`,
		new: `	if r.sealed && !PLANTED {
		return view{}, final{driver.ErrSealed}
	}`,
	},
	{
		name: "a seal counts as the end of its key",
		file: "wait.go", model: "seal", wrong: []string{modelSealed},
		old: `i := slices.Index(v.before, key)`,
		new: `i := slices.Index(v.before, key)
	if PLANTED && isSeal(e) {
		e = &clientv3.Event{Type: mvccpb.DELETE, Kv: e.Kv}
	}`,
	},
	{
		name: "a release does not notice that it has ended the hold",
		file: "lease.go", model: "queue", wrong: []string{modelError},
		old: `ended := removed ||`,
		new: `ended := !PLANTED && removed ||`,
	},
	{
		name: "a hold does not know when its session ends",
		file: "lease.go", model: "arrivals", wrong: []string{modelOver},
		old: `		return h.session.End.At()
	}
	return h.own`,
		new: `		return h.session.End.At() * map[bool]int64{true: 0, false: 1}[PLANTED]
	}
	return h.own`,
	},
	{
		name: "a put does not check for the seal",
		file: "acquire.go", model: "seal and a second call", wrong: []string{modelAsleep},
		old: `[]clientv3.Cmp{condition}, append([]clientv3.Op{h.readBefore()`,
		new: `map[bool][]clientv3.Cmp{false: {condition}}[PLANTED], append([]clientv3.Op{h.readBefore()`,
	},
	{
		name: "a mark does not notify waiters",
		file: "seal.go", model: "mark", wrong: []string{modelFallen},
		old: `clientv3.OpPut(markKey(dir), ""), h.putAgain()}`,
		new: `clientv3.OpPut(markKey(dir), ""), map[bool]clientv3.Op{true: clientv3.OpGet(h.key), false: h.putAgain()}[PLANTED]}`,
	},
	{
		name: "a number is used again while a request may be on its way",
		file: "lease.go", model: "losses and rounds", wrong: []string{modelTwo, modelNotFirst},
		old: `only := h.deletions == 1 && !h.sealing`,
		new: `only := PLANTED || h.deletions == 1 && !h.sealing`,
	},
	{
		name: "a key that may yet be put is not cleaned up",
		file: "acquire.go", model: "losses", wrong: []string{modelAsleep, modelLeft},
		old: `	case doubt:
		h.leaveToCleaner(false)`,
		new: `	case doubt && !PLANTED:
		h.leaveToCleaner(false)`,
	},
	{
		name: "an absent key is not checked again",
		file: "close.go", model: "losses", wrong: []string{modelAsleep, modelLeft},
		old: `(removed || g.definite)`,
		new: `(PLANTED || removed || g.definite)`,
	},
	{
		name: "a canceled waiter leaves the key",
		file: "acquire.go", model: "cancels", wrong: []string{modelAsleep, modelLeft},
		old: `_, err := d.delete(bounded, h.key)`,
		new: `var err error
		if !PLANTED {
			_, err = d.delete(bounded, h.key)
		}`,
	},
	{
		name: "a lease counts for longer than the server keeps it",
		file: "renew.go", model: "cuts", wrong: []string{modelTwo},
		old: `	c.end.Begin(sent + int64(c.ttl))
	c.lasts`,
		new: `	c.end.Begin(sent + map[bool]int64{true: 2, false: 1}[PLANTED]*int64(c.ttl))
	c.lasts`,
	},
}

// mistakeVariable selects the mistake that a copy of the driver makes: 0 is
// none.
const mistakeVariable = "DSYNC_ETCD_MISTAKE"

// TestModelFindsEveryMistake shows that the model finds each planted mistake.
func TestModelFindsEveryMistake(t *testing.T) {
	program := plantMistakes(t)
	for i, m := range modelMistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, "-model.walks", "3000", "-model.runs", strconv.Itoa(m.runs),
				"-test.run", "^TestModelKeepsItsPromises$/^"+strings.ReplaceAll(m.model, " ", "_")+"$")
			cmd.Env = append(os.Environ(), mistakeVariable+"="+strconv.Itoa(i+1))
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the model %q does not find the mistake", m.model)
			}
			for _, wrong := range m.wrong {
				if strings.Contains(string(out), wrong+": ") {
					return
				}
			}
			t.Errorf("got %v, want one of the failures %q in\n%s", err, m.wrong, out)
		})
	}
}

// plantMistakes compiles the tests of a copy of the driver.
func plantMistakes(t *testing.T) (program string) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for i, m := range modelMistakes {
		if texts[m.file] == "" {
			text, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			texts[m.file] = string(text)
		}
		if n := strings.Count(texts[m.file], m.old); n != 1 {
			t.Fatalf("%s: the text for %q occurs %d times, want once", m.file, m.name, n)
		}
		planted := strings.ReplaceAll(m.new, "PLANTED", "(plantedMistake == "+strconv.Itoa(i+1)+")")
		texts[m.file] = strings.Replace(texts[m.file], m.old, planted, 1)
	}
	texts["planted.go"] = "package etcd\nimport (\"os\"; \"strconv\")\nvar plantedMistake, _ = strconv.Atoi(os.Getenv(\"" + mistakeVariable + "\"))\n"
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for file, text := range texts {
		original, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		overlay.Replace[original] = filepath.Join(dir, file)
		if err := os.WriteFile(overlay.Replace[original], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The copy needs only the tests of the model.
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "model_") {
			original, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			overlay.Replace[original] = ""
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "etcd.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", path, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
