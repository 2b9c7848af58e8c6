package app

import (
	"os"
	"runtime"
)

// Modest lets this process run on half the host's processors, one at the least, unless
// GOMAXPROCS says otherwise. Mains of long-running roles call it.
//
// A short run passes through four processes, and mostly waits. With a processor to
// spare, the Go runtime wakes a thread at each hand-over between goroutines, which
// finds nothing to do and sleeps again: on two processors that doubled the thread
// switches of a run and cost a fifth of its time. The processors belong to the commands.
func Modest() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
	}
}
