package bench

import (
	"fmt"
	"slices"
	"strings"
)

// choose returns those of all whose names are in a list with commas between them, or all if the list is empty.
func choose[T any](all []T, list string, name func(T) string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	var names []string
	for _, one := range all {
		names = append(names, name(one))
	}
	var chosen []T
	for want := range strings.SplitSeq(list, ",") {
		i := slices.Index(names, want)
		if i < 0 {
			return nil, fmt.Errorf("there is no %q among %s", want, strings.Join(names, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// fit leaves out what the size has no locks or points for.
func (s Size) fit(workloads []*Workload) []*Workload {
	return slices.DeleteFunc(slices.Clone(workloads), func(w *Workload) bool {
		return w == held100k && s.Held[1] == 0 || w.Curve != nil && s.Points > 0 && slices.Index(w.Curve.Points, w) >= s.Points
	})
}

// withoutPeers returns backends with floors and dsync alone.
func withoutPeers(backends []*Backend) []*Backend {
	var all []*Backend
	for _, b := range backends {
		own := *b
		own.Rows = slices.DeleteFunc(slices.Clone(b.Rows), func(r *Row) bool { return r.Kind == Peer })
		all = append(all, &own)
	}
	return all
}
