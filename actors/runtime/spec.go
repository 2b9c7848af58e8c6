package runtime

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TagVariable is the environment variable that Start adds to every child. Its value,
// [Spec.Tag], is what a scan of /proc recognises a tree by.
const TagVariable = "LIMPET_PROCESS_ID"

// The state file: see [Spec.State].
const (
	// StateDescriptor is the child's private file of [Spec.State]. What may refer to
	// descriptors by one digit only, as dash does, opens it with 1<>/dev/fd/65: opening it
	// as a new file (1>) is refused, because the file cannot be cut.
	StateDescriptor = 65
	// MaxState is the size of that file, in bytes.
	MaxState = 256 << 10
)

// DefaultUmask is the umask for a Spec whose caller asked for none.
const DefaultUmask = 0o022

// Size of a terminal in cells.
type Size struct{ Rows, Cols uint16 }

// defaultSize is what a zero row or column count becomes.
var defaultSize = Size{Rows: 24, Cols: 80}

// Rlimit bounds one RLIMIT_* resource: soft and hard limit become Value, or stay at a
// lower hard limit where this process may not raise it.
type Rlimit struct {
	Resource int
	Value    uint64
}

// Spec says what to start.
type Spec struct {
	// Argv is the argument vector, at least one element.
	Argv []string
	// Path is the program. Empty: Argv[0], looked up in the PATH of Env when it has no
	// slash. A relative path is relative to Dir.
	Path string
	// Env is the whole environment but for the tag. See [Environment].
	Env []string
	// Dir is the working directory, absolute. Empty: the one of this process.
	Dir string
	// Stdin makes a pipe; else the child reads /dev/null. Ignored with TTY.
	Stdin bool
	// TTY gives the child a controlling terminal of this size on 0, 1 and 2. Zero rows
	// become 24, zero columns 80.
	TTY *Size
	// Merged sends stderr into the pipe of stdout.
	Merged bool
	// Descriptors are further descriptors of the child, each number once, with either
	// Input, at most [wire.MaxInputBytes], or Output. None with TTY.
	Descriptors []wire.Descriptor
	// State gives the child a file of [MaxState] bytes at [StateDescriptor], for
	// [Child.State] to read. It is no pipe: who inherits it holds nothing up.
	State bool
	// Umask as it is: 0 masks nothing. Callers without a wish pass [DefaultUmask].
	Umask int
	// Rlimits are in force before the first instruction of the program. Setting them
	// traces the exec, so an unprivileged supervisor cannot start a set-uid program
	// with its privilege this way (a shell that starts one later is not affected).
	Rlimits []Rlimit
	// MemoryBytes bounds the memory of the whole tree; 0 does not. Where no memory
	// controller can be had, Start answers [ErrNoMemoryLimit].
	MemoryBytes int64
	// Tag identifies the tree, 1..128 bytes without NUL.
	Tag string
}

func (s *Spec) validate() error {
	switch {
	case len(s.Argv) == 0:
		return wire.Invalid("argv", "must have at least one element")
	case s.Path == "" && s.Argv[0] == "":
		return wire.Invalid("argv", "the program must not be empty")
	case s.Tag == "" || len(s.Tag) > 128 || strings.IndexByte(s.Tag, 0) >= 0:
		return wire.Invalid("tag", "must have 1 to 128 bytes and no NUL")
	case s.Dir != "" && !filepath.IsAbs(s.Dir):
		return wire.Invalid("cwd", "%q is not absolute", s.Dir)
	case s.Umask < 0 || s.Umask > 0o777:
		return wire.Invalid("umask", "%#o is not within 0..0777", s.Umask)
	case s.MemoryBytes < 0:
		return wire.Invalid("limits.memory_bytes", "%d is negative", s.MemoryBytes)
	}
	return s.validateDescriptors()
}

func (s *Spec) validateDescriptors() error {
	if len(s.Descriptors) > 0 && s.TTY != nil {
		return wire.Invalid("descriptors", "a terminal has none beside its own")
	}
	var seen [wire.MaxDescriptor + 1]bool
	for i, d := range s.Descriptors {
		switch at := fmt.Sprintf("descriptors[%d]", i); {
		case d.Number < wire.MinDescriptor || d.Number > wire.MaxDescriptor:
			return wire.Invalid(at+".number", "%d is not within %d..%d", d.Number, wire.MinDescriptor, wire.MaxDescriptor)
		case seen[d.Number]:
			return wire.Invalid(at+".number", "%d is there twice", d.Number)
		case d.Output == (len(d.Input) > 0):
			return wire.Invalid(at, "must have either input or output")
		case len(d.Input) > wire.MaxInputBytes:
			return wire.Invalid(at+".input", "%d bytes, at most %d", len(d.Input), wire.MaxInputBytes)
		}
		seen[d.Number] = true
	}
	return nil
}

// Config of a [Forker].
type Config struct {
	// Cgroup is where leaves are made: "" discovers this process's own cgroup v2,
	// "off" uses none, an absolute path names a cgroup v2 directory.
	Cgroup string
	// Logger takes what nobody can be told as an error; nil logs to slog's default.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if c.Cgroup != "" && c.Cgroup != "off" && !filepath.IsAbs(c.Cgroup) {
		return fmt.Errorf("runtime: Config.Cgroup: %q is neither empty, \"off\", nor absolute", c.Cgroup)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Exit says how the leader of a tree ended.
type Exit struct {
	// Code is the raw exit status 0..255, or -1 when a signal ended the process.
	Code int
	// Signal that ended it, or 0.
	Signal     syscall.Signal
	CoreDumped bool
	// Usage of the leader and of the descendants it waited for.
	Usage wire.Usage
	// At is when the end was observed.
	At time.Time
	// OOM: the kernel killed a member of the tree's memory cgroup for want of memory.
	OOM bool
}

// Shell is the status as a shell says it: Code, or 128 plus the signal.
func (e Exit) Shell() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// StopOptions of [Child.Stop].
type StopOptions struct {
	// First signal to the tree; 0 goes to KILL at once.
	First syscall.Signal
	// Grace between First and KILL. The tree may use it up, but no more than it needs.
	Grace time.Duration
}

// StopResult says what is known after a stop.
type StopResult struct {
	// Gone: no live member was found. Only with Proof cgroup does that mean that
	// none is left.
	Gone bool
	// Proof is how that is known.
	Proof wire.Proof
	// Killed counts the members that did not end by themselves and were sent KILL.
	Killed int
	// Unsignalled are the pids of live members this process may not signal.
	Unsignalled []int
}
