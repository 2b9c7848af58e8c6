package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// privatePrefix of the directories of what runs in one process. Whoever lives holds the
// lock in it, so that what a kill -9 left is told apart by the kernel.
const (
	privatePrefix = "limpet-run-"
	newPrefix     = "limpet-new-" // of one whose lock is not held yet
	ownerLock     = "owner.lock"
)

// newPrivate makes a private directory. It gets its name when its lock is held: nobody
// takes it for that of a dead one.
func newPrivate() (dir string, unlock func(), err error) {
	fresh, err := os.MkdirTemp("", newPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("private directory: %w", err)
	}
	if unlock, err = lock(filepath.Join(fresh, ownerLock)); err == nil {
		parent, name := filepath.Split(fresh)
		dir = filepath.Join(parent, privatePrefix+strings.TrimPrefix(name, newPrefix))
		if err = os.Rename(fresh, dir); err == nil {
			return dir, unlock, nil
		}
		unlock()
	}
	return "", nil, errors.Join(fmt.Errorf("private directory: %w", err), os.RemoveAll(fresh))
}

// removeDead removes the private directories of this user whose owners are dead, and
// their keepers with them. What fails is left to the next.
func removeDead(log *slog.Logger) {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		log.Warn("look for private directories of dead ones", "err", err)
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), privatePrefix) || !e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it was just removed
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
			continue
		}
		dir := filepath.Join(os.TempDir(), e.Name())
		if err := removeIfDead(dir); err != nil {
			log.Warn("remove the private directory of a dead one", "dir", dir, "err", err)
		}
	}
}

// removeIfDead holds both locks while it removes, so that two do not do it at once.
func removeIfDead(dir string) error {
	for _, name := range []string{ownerLock, filepath.Join("worker", "keeper.lock")} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was killed before it made one, or while it removed
		}
		if err != nil {
			return err
		}
		defer f.Close()
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil // it lives
		}
		if err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
