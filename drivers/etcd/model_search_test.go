package etcd

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// modelResult is the result of a search or a walk.
type modelResult struct {
	runs, states, strayed int
	left                  int // ways that were not taken
	wrong, detail         string
	way                   []string // the path to the failure
}

func (r modelResult) report(t *testing.T) {
	t.Helper()
	if r.wrong != "" {
		t.Errorf("%s: %s after\n%s", r.wrong, r.detail, strings.Join(r.way, "\n"))
	}
}

// modelPath is a path to a state, and the steps that need not be taken in that
// state, because the states to which they lead are reached on other paths.
type modelPath struct {
	steps  []string
	asleep []modelStep
}

// modelSearch takes all steps in all orders. From each new state it continues
// with one step. It returns for the other steps later, by repeating everything
// from the start. If orders differ only in steps that are apart, it takes only
// one of these orders. It is a depth-first search.
type modelSearch struct {
	modelCase
	seen   map[uint64][]modelStep
	work   []modelPath
	result modelResult
}

// search runs to the end in a small case, and for a limited number of runs in
// other cases.
func (c modelCase) search(t *testing.T, runs int) (r modelResult) {
	synctest.Test(t, func(*testing.T) {
		s := &modelSearch{modelCase: c, seen: make(map[uint64][]modelStep), work: []modelPath{{}}}
		for len(s.work) > 0 && s.result.wrong == "" && (c.small || s.result.runs < runs) {
			path := s.work[len(s.work)-1]
			s.work = s.work[:len(s.work)-1]
			s.run(path)
		}
		s.result.states, s.result.left = len(s.seen), len(s.work)
		r = s.result
	})
	return r
}

// run repeats a path, and goes on from there until there is nothing new.
func (s *modelSearch) run(path modelPath) {
	s.result.runs++
	w := newModelWorld(s.modelCase)
	defer w.close()
	w.settle()
	for _, name := range path.steps {
		steps := w.choices()
		i := slices.IndexFunc(steps, func(s modelStep) bool { return s.name == name })
		if i < 0 {
			s.result.strayed++
			return
		}
		w.take(steps[i])
	}
	for way, asleep := slices.Clone(path.steps), path.asleep; ; {
		steps := w.choices()
		if w.isOver() {
			s.end(w, way)
			return
		}
		var todo []modelStep
		if todo, asleep = s.todo(w.state(), steps, asleep); len(todo) == 0 {
			return
		}
		for i, step := range todo {
			if i > 0 {
				s.work = append(s.work, modelPath{append(slices.Clone(way), step.name), stillAsleep(asleep, todo[:i], step)})
			}
		}
		asleep = stillAsleep(asleep, nil, todo[0])
		way = append(way, todo[0].name)
		w.take(todo[0])
	}
}

// todo returns the steps to be taken from a state, and the steps that are
// asleep there.
func (s *modelSearch) todo(state uint64, steps, asleep []modelStep) (todo, _ []modelStep) {
	before, seen := s.seen[state]
	both := asleep
	if seen {
		both = slices.DeleteFunc(slices.Clone(before), func(step modelStep) bool { return !isIn(asleep, step) })
	}
	s.seen[state] = both
	for _, step := range steps {
		if !isIn(asleep, step) && (!seen || isIn(before, step)) {
			todo = append(todo, step)
		}
	}
	return todo, both
}

func isIn(steps []modelStep, step modelStep) bool {
	return slices.ContainsFunc(steps, func(s modelStep) bool { return s.name == step.name })
}

// stillAsleep returns the steps that need not be taken after a step, because
// other steps were or will be taken in their place.
func stillAsleep(asleep, taken []modelStep, step modelStep) (still []modelStep) {
	for _, other := range slices.Concat(asleep, taken) {
		if other.apart(step) {
			still = append(still, modelStep{name: other.name, client: other.client, reads: other.reads, writes: other.writes})
		}
	}
	return still
}

// end records a failure at the end of a run.
func (s *modelSearch) end(w *modelWorld, way []string) {
	w.finish()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong != "" {
		s.result.wrong, s.result.detail, s.result.way = w.wrong, w.detail, way
	}
}

// walk takes steps at random.
func (c modelCase) walk(t *testing.T, seed uint64, walks int) (r modelResult) {
	random := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(*testing.T) {
		s := &modelSearch{modelCase: c}
		for s.result.wrong == "" && s.result.runs < walks {
			s.result.runs++
			w := newModelWorld(c)
			w.settle()
			var way []string
			for {
				steps := w.choices()
				if w.isOver() {
					break
				}
				step := steps[random.IntN(len(steps))]
				way = append(way, step.name)
				w.take(step)
			}
			s.end(w, way)
			w.close()
		}
		r = s.result
	})
	return r
}
