package wire

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// MaxSignal is the largest signal number of Linux.
const MaxSignal = 64

// ParseSignal reads a signal by name, with or without SIG and in any case ("INT",
// "sigterm"), or by number ("9"), and gives its number, 1..64.
func ParseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > MaxSignal || s[0] == '+' {
			return 0, fmt.Errorf("%s is not a signal number within 1..%d", quote(s), MaxSignal)
		}
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n > 0 {
		return int(n), nil
	}
	return 0, fmt.Errorf("%s is not a signal; give a name such as INT or SIGTERM, or a number within 1..%d", quote(s), MaxSignal)
}

// SignalName gives the short name of a signal ("KILL"), or its number where it has
// none (the real-time signals); "" for 0.
func SignalName(n int) string {
	if n == 0 {
		return ""
	}
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(n)
}

// ExitCode is what a shell would say: the exit status, 0..255, or 128+n when signal
// n (not 0) ended the process.
func ExitCode(status, signal int) int {
	if signal != 0 {
		return 128 + signal
	}
	return status & 0xff
}
