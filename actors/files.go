package actors

import (
	"context"
	"os"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// maxLooks bounds the looks at files of a worker that are under way at once.
	maxLooks = 64
	// lookPatience is how long one look is waited for; it goes on meanwhile.
	lookPatience = time.Second
)

// files looks at files for those who wait for one. A file system that hangs holds a
// goroutine until the kernel returns, which may be never: those are nobody's to wait for,
// one a call and maxLooks in all. It is safe for concurrent use.
type files struct{ looks chan struct{} }

func newFiles() *files { return &files{looks: make(chan struct{}, maxLooks)} }

// fileLook looks for one file, again and again; it belongs to one goroutine.
type fileLook struct {
	files *files
	path  string
	there chan bool // of the look under way
}

// exists reports whether the file is there, links followed. What cannot be reached, for
// want of a right too, is not there. It ends with ctx at the latest, and after
// lookPatience, then with false.
func (l *fileLook) exists(ctx context.Context) (bool, error) {
	if l.there == nil {
		if !post(l.files.looks, struct{}{}) {
			return false, wire.Errorf(wire.CodeOverloaded, "%d looks at files are under way already, and may hang; try again shortly", maxLooks)
		}
		there, looks, path := make(chan bool, 1), l.files.looks, l.path
		l.there = there
		go func() { // ends when the kernel returns
			_, err := os.Stat(path)
			<-looks
			there <- err == nil
		}()
	}
	t := time.NewTimer(lookPatience)
	defer t.Stop()
	select {
	case ok := <-l.there:
		l.there = nil
		return ok, nil
	case <-t.C:
	case <-ctx.Done():
	}
	return false, nil
}
