package telemetry

import (
	"runtime/debug"
	"testing"
)

func TestVersionIn(t *testing.T) {
	ours := func(version string, replace *debug.Module) *debug.Module {
		return &debug.Module{Path: instrumentation, Version: version, Replace: replace}
	}
	other := &debug.Module{Path: "example.com/other", Version: "v9.9.9"}
	for name, test := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"no information":           {nil, ""},
		"a program that uses it":   {&debug.BuildInfo{Main: *other, Deps: []*debug.Module{other, ours("v0.1.2", nil)}}, "v0.1.2"},
		"a program without it":     {&debug.BuildInfo{Main: *other}, ""},
		"its own tests":            {&debug.BuildInfo{Main: *ours("(devel)", nil)}, ""},
		"replaced by a directory":  {&debug.BuildInfo{Deps: []*debug.Module{ours("v0.1.2", &debug.Module{Path: "../dsync"})}}, ""},
		"replaced by another fork": {&debug.BuildInfo{Deps: []*debug.Module{ours("v0.1.2", &debug.Module{Path: "a/b", Version: "v0.1.3"})}}, "v0.1.3"},
		"only a nested module":     {&debug.BuildInfo{Deps: []*debug.Module{{Path: instrumentation + "/cmd/dsync", Version: "v3.0.0"}}}, ""},
	} {
		if got := versionIn(test.info); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
