package history

import (
	"slices"
	"time"
)

// permits counts the violations of a name of permits, of which there was one limit.
func (w *twin) permits(tales []*tale, count func(Rule, bool)) {
	limit := 0
	for _, a := range tales {
		limit = max(limit, a.call.Limit)
	}
	used := make([]int, len(tales)) // when each call returned
	for i, b := range tales {
		for k, a := range tales {
			tie := a.back.Time == b.back.Time && w.crowded[b.back.Time]
			if a == b || a.sure && (w.follows(a.back, b.back) || tie && k < i) && w.had(a, b.back) {
				used[i] += a.call.Permits
			}
		}
	}
	for i, b := range tales {
		count(RuleTokens, b.got && b.back.Token != 0)
		count(RuleOverlap, b.sure && used[i] > limit)
		seen := b.find(KindWait)
		overtaken := false
		for k, a := range tales {
			overtaken = overtaken || a.sure && !a.call.NoWait && seen.Time < a.call.Time && w.follows(a.back, b.back) && used[k]+b.call.Permits > limit
		}
		count(RuleOrder, overtaken && b.sure && !b.call.NoWait && seen.Kind != "" && w.quiet(b))
		count(RuleWake, (b.got || b.back.Kind != "" && !b.call.NoWait) && w.permitsIdle(tales, b.back, limit))
		count(RuleWake, b.doubtful() && w.permitsIdle(tales, b.call, limit))
	}
}

// permitsIdle looks back from e, at which nobody may have been waiting for free permits for long.
func (w *twin) permitsIdle(tales []*tale, e Event, limit int) bool {
	var oldest *tale
	since := -forever
	for _, a := range tales {
		back := a.back.Kind != "" && w.precedes(a.back, e)
		if waits := w.precedes(a.call, e) && a.back.Kind != "" && !back && !a.call.NoWait; waits && (oldest == nil || w.precedes(a.call, oldest.call)) {
			oldest = a
		}
		if back && (a.got || !a.call.NoWait) {
			since = max(since, a.back.Time)
		}
	}
	if oldest == nil {
		return false
	}
	takes := func(a *tale) bool {
		return a.got && w.precedes(a.back, e) || a.doubtful() && w.precedes(a.call, e)
	}
	for _, u := range tales { // as late as that, were too many taken?
		n := oldest.call.Permits
		for _, a := range tales {
			if takes(a) && a.free >= u.free {
				n += a.call.Permits
			}
		}
		if takes(u) && n > limit {
			since = max(since, u.free)
		}
	}
	since = max(since, oldest.call.Time)
	return slices.ContainsFunc(w.calm, func(c [2]time.Duration) bool {
		from, to := max(since, c[0]), min(e.Time, c[1])
		return from < to && to-from > w.Wake && (c[0] == -forever || to-c[0] > w.Recover)
	})
}
