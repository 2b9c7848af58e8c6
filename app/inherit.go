package app

import (
	"os"
	"strconv"
	"syscall"
)

// PassNothingOn marks every descriptor above stderr that we were started with as ours
// alone. What we start outlives us, and would otherwise keep the pipes and locks of
// whoever started us. Mains call it first.
func PassNothingOn() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // no /proc: as it was
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
