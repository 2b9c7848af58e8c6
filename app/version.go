package app

import "runtime/debug"

// Version is the module's version and commit as the build recorded them.
func Version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return b.Main.Version + " " + s.Value[:12]
		}
	}
	return b.Main.Version
}
