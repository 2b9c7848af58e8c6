package app

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// Modest makes this process cheap to wake. The mains of long-running roles call it
// first; docs/decisions/0006 has the figures. It lets the process run on half the
// host's processors, one at the least, unless GOMAXPROCS says otherwise, and sees to
// it that the runtime was started with [calmRuntime], by executing the program again
// where it was not.
func Modest() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
	}
	if strings.Contains(os.Getenv("GODEBUG"), "schedtrace=") {
		return
	}
	// What fails here costs speed and nothing else: we just go on.
	_ = syscall.Exec("/proc/self/exe", os.Args, calmed(os.Environ()))
}

// calmRuntime keeps the monitor thread of the Go runtime from its deep sleep. Woken
// from there it looks around every 20 µs for a while, which for a process that is
// woken a thousand times a second means always; kept awake it slows down to 100 looks
// a second. The trace that this setting is named after would come every 25 days of
// the host's uptime: one line.
const calmRuntime = "schedtrace=2147483647"

// calmed is env with calmRuntime in GODEBUG.
func calmed(env []string) []string {
	env = slices.Clone(env)
	for i, v := range env {
		if strings.HasPrefix(v, "GODEBUG=") {
			env[i] = v + "," + calmRuntime
			return env
		}
	}
	return append(env, "GODEBUG="+calmRuntime)
}
