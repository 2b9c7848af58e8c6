//go:build !linux

package bus

import "net"

// DialUnix returns a dialer for a unix socket. The kernel bounds the length of path.
func DialUnix(path string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial("unix", path) }
}
