package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// Tenant of everything on one host.
const Tenant = "local"

// State is a state directory, and the names of what is in it.
type State string

// StateDir resolves the state directory: the flag, $LIMPET_STATE, then
// $XDG_STATE_HOME/limpet, which is ~/.local/state/limpet by default. Without any of
// them there is none, and nothing is up: ErrNotUp.
func StateDir(flag string) (State, error) {
	dir := flag
	if dir == "" {
		dir = os.Getenv("LIMPET_STATE")
	}
	if dir == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", fmt.Errorf("%w: there is no state directory; give --state, LIMPET_STATE or HOME: %w", ErrNotUp, err)
			}
			base = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(base, "limpet")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state directory %s: %w", dir, err)
	}
	return State(abs), nil
}

func (s State) file(name string) string { return filepath.Join(string(s), name) }

// Store is where NATS keeps its streams, its secret and its lock.
func (s State) Store() string { return s.file("nats") }

// Socket is where clients of this user connect.
func (s State) Socket() string { return s.file("nats.sock") }

// workerSocket is where the worker connects: clients cannot use it up.
func (s State) workerSocket() string { return s.file("worker.sock") }

// Worker is the worker's own directory: the keeper's socket and the spool.
func (s State) Worker() string { return s.file("worker") }

// discovery is the file by which other commands find a running up.
func (s State) discovery() string { return s.file("limpet.json") }

// storeLock is what the owner of the state directory holds; embedded makes it.
func (s State) storeLock() string { return filepath.Join(s.Store(), "lock") }

func (s State) startLock() string  { return s.file("start.lock") }
func (s State) mcpToken() string   { return s.file("mcp.token") }
func (s State) upLog() string      { return s.file("up.log") }
func (s State) workerPID() string  { return s.file("worker.pid") }
func (s State) keeperPID() string  { return s.file("keeper.pid") }
func (s State) workerLog() string  { return s.file("worker.log") }
func (s State) keeperLog() string  { return s.file("keeper.log") }
func (s State) workerFile() string { return s.file("worker.json") }

// Discovery says how to reach what is up. The file is 0600: it holds a password.
type Discovery struct {
	Version  int    `json:"version"`
	PID      int    `json:"pid"`
	Socket   string `json:"socket"`
	Tenant   string `json:"tenant"`
	User     string `json:"user"`
	Password string `json:"password"`
	// Observer may read the events of all, and nothing else.
	Observer         string    `json:"observer"`
	ObserverPassword string    `json:"observer_password"`
	StartedAt        time.Time `json:"started_at"`
}

// ErrNotUp: nothing is up in the state directory.
var ErrNotUp = errors.New("nothing is up")

// Discover finds what is up. What the file of a dead one says is not used.
func Discover(s State) (*Discovery, error) {
	var d Discovery
	if err := readJSON(s.discovery(), &d); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w in %s; start it with: limpet up --state %s", ErrNotUp, s, s)
		}
		return nil, err
	}
	if d.Version != 1 {
		return nil, fmt.Errorf("%s: version %d is not known here; use the limpet that is up", s.discovery(), d.Version)
	}
	c, err := bus.DialUnix(d.Socket)()
	if err != nil {
		return nil, fmt.Errorf("%w in %s (its last up, process %d, has ended); start it with: limpet up --state %s", ErrNotUp, s, d.PID, s)
	}
	_ = c.Close()
	if pid := s.ownerPID(); pid != 0 && pid != d.PID {
		return nil, fmt.Errorf("%w in %s yet: process %d is just starting", ErrNotUp, s, pid)
	}
	return &d, nil
}

// ownerPID is what the owner wrote into its lock; 0 where that cannot be read. It may
// have ended.
func (s State) ownerPID() int {
	b, err := os.ReadFile(s.storeLock())
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// Ended tells whether the up that was found in s has ended in order, and its processes
// with it. One that was killed leaves its file to the next.
func (s State) Ended() bool {
	_, err := os.Stat(s.discovery())
	return errors.Is(err, fs.ErrNotExist)
}

// Bus is how to connect as the tenant.
func (d *Discovery) Bus(name string) bus.Config {
	return bus.Config{
		Name: name, Dial: bus.DialUnix(d.Socket), User: d.User, Password: d.Password,
		InboxPrefix: subjects.InboxPrefix(subjects.RoleTenant, d.Tenant),
	}
}

// writeJSON writes a file whole or not at all, for this user alone.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writePID(path string, pid int) error {
	return os.WriteFile(path, []byte(strconv.Itoa(pid)+"\n"), 0o600)
}
