package bus

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// DialUnix returns a dialer for a unix socket whose path may be of any length: the
// kernel takes 107 bytes, so a long path is reached through a descriptor of its
// directory.
func DialUnix(path string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		if len(path) <= 100 {
			return net.Dial("unix", path)
		}
		dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open directory of %s: %w", path, err)
		}
		defer unix.Close(dir)
		return net.Dial("unix", "/proc/self/fd/"+strconv.Itoa(dir)+"/"+filepath.Base(path))
	}
}
