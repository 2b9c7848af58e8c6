package embedded

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockedError says who owns a directory.
type LockedError struct {
	Dir string
	PID int // 0 when unknown
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("%s is in use by process %d", e.Dir, e.PID)
}

// directory is where a server keeps its files, owned until close.
type directory struct {
	path      string
	temporary bool
	lock      *os.File // nil for a temporary one
	secret    []byte
}

// openDirectory makes and locks dir. Without one the server gets an empty directory of
// its own in temp, because JetStream wants one even when all streams are in memory.
func openDirectory(dir, temp string, secret []byte) (*directory, error) {
	if dir == "" {
		path, err := os.MkdirTemp(temp, "limpet-nats-")
		if err != nil {
			return nil, fmt.Errorf("temporary directory: %w", err)
		}
		if len(secret) == 0 {
			secret = newSecret()
		}
		return &directory{path: path, temporary: true, secret: secret}, nil
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	d := &directory{path: path, secret: secret}
	if d.lock, err = lockFile(path); err != nil {
		return nil, err
	}
	if len(secret) == 0 {
		if d.secret, err = keptSecret(d.secretFile()); err != nil {
			d.close()
			return nil, fmt.Errorf("secret: %w", err)
		}
	}
	return d, nil
}

// lockFile takes the lock of a directory and writes our pid into it. The kernel frees
// it when we die, however we die.
func lockFile(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		b := make([]byte, 32)
		n, _ := f.ReadAt(b, 0) // the owner may not have written it yet
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
		return nil, &LockedError{Dir: dir, PID: pid}
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func newSecret() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return b
}

// keptSecret reads the secret, or makes it: complete under its name or not there.
func keptSecret(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		if len(b) < 16 {
			return nil, fmt.Errorf("%s holds fewer than 16 bytes", path)
		}
		return b, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	b = newSecret()
	if err := writeSynced(path, b); err != nil {
		return nil, err
	}
	return b, nil
}

// writeSynced makes a file that a power loss leaves whole or takes whole: streams that
// outlive the secret they were made under would lock everyone out.
func writeSynced(path string, b []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (d *directory) secretFile() string {
	if d.temporary {
		return ""
	}
	return filepath.Join(d.path, "secret")
}

// password of a user: an HMAC of its name.
func (d *directory) password(user string) string {
	m := hmac.New(sha256.New, d.secret)
	m.Write([]byte("limpet user " + user))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func (d *directory) close() {
	if d.temporary {
		_ = os.RemoveAll(d.path) // best effort: it is empty but for JetStream's own folders
		return
	}
	d.lock.Close() // frees the lock
}
