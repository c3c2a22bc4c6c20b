package telemetry

import (
	"runtime/debug"
	"sync"
)

// version is the version of this module in the program, or "" if it is unknown,
// as in the module's own tests.
var version = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return versionIn(info)
})

func versionIn(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != instrumentation {
			continue
		}
		if m.Replace != nil {
			m = m.Replace // the replacement has no version if it is a directory
		}
		if m.Version != "(devel)" {
			return m.Version
		}
	}
	return ""
}
