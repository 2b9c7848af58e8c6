package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/limpet-sh/limpet/subjects/wire"
	"golang.org/x/sys/unix"
)

var (
	// ErrClosed answers a Start on a closed Forker.
	ErrClosed = errors.New("runtime: forker closed")
	// ErrRunning answers a Close of a child whose end has not been observed.
	ErrRunning = errors.New("runtime: child still running")
	// ErrNoMemoryLimit says that no memory controller could be had.
	ErrNoMemoryLimit = errors.New("no memory cgroup can be used here")
)

// StartErrorKind is why a start failed.
type StartErrorKind string

// Kinds of [StartError].
const (
	WorkdirMissing      StartErrorKind = "workdir_missing"
	WorkdirNotDirectory StartErrorKind = "workdir_not_directory"
	WorkdirPermission   StartErrorKind = "workdir_permission"
	ProgramNotFound     StartErrorKind = "program_not_found"
	ProgramPermission   StartErrorKind = "program_permission"
	ProgramFormat       StartErrorKind = "program_format"
	InterpreterMissing  StartErrorKind = "interpreter_missing"
	ArgumentsTooBig     StartErrorKind = "arguments_too_big"
	ArgumentNUL         StartErrorKind = "argument_nul"
	MemoryLimit         StartErrorKind = "memory_limit"
	ResourceLimit       StartErrorKind = "resource_limit"
	TerminalUnavailable StartErrorKind = "terminal_unavailable"
	StartOther          StartErrorKind = "other"
)

// StartError is every failure of a start after validation. Nothing is left behind by
// one: no process, descriptor or leaf. It unwraps to the cause and to a [wire.Error].
type StartError struct {
	Kind StartErrorKind
	Path string // the directory or program at fault
	Err  error
}

func (e *StartError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("start: %s: %v", e.Kind, e.Err)
	}
	return fmt.Sprintf("start: %s: %s: %v", e.Kind, e.Path, e.Err)
}

// Unwrap gives the cause and the wire form, so that errors.Is finds the errno and
// errors.As a *wire.Error.
func (e *StartError) Unwrap() []error { return []error{e.Err, e.wire()} }

func (e *StartError) wire() *wire.Error {
	code, field, text := wire.CodeSpawnFailed, "argv", ""
	switch e.Kind {
	case WorkdirMissing:
		code, field, text = wire.CodeWorkdirNotFound, "cwd", fmt.Sprintf("the working directory %s does not exist", e.Path)
	case WorkdirNotDirectory:
		code, field, text = wire.CodeWorkdirNotFound, "cwd", fmt.Sprintf("the working directory %s is not a directory", e.Path)
	case WorkdirPermission:
		field, text = "cwd", fmt.Sprintf("the working directory %s cannot be entered: permission denied", e.Path)
	case ProgramNotFound:
		text = fmt.Sprintf("the program %s was not found", e.Path)
	case ProgramPermission:
		text = fmt.Sprintf("the program %s cannot be executed: permission denied", e.Path)
	case ProgramFormat:
		text = fmt.Sprintf("the program %s is in no format this host executes", e.Path)
	case InterpreterMissing:
		text = fmt.Sprintf("the interpreter or loader that the program %s names does not exist", e.Path)
	case ArgumentsTooBig:
		text = "arguments and environment are larger than the kernel accepts"
	case ArgumentNUL:
		code, text = wire.CodeInvalidArguments, "an argument, variable or path contains a NUL byte"
	case MemoryLimit:
		code, field, text = wire.CodeCapabilityMissing, "limits.memory_bytes", "this host offers no memory cgroup to bound the tree with"
	case ResourceLimit:
		code, field, text = wire.CodeCapabilityMissing, "limits", fmt.Sprintf("a limit cannot be set: %v", e.Err)
	case TerminalUnavailable:
		code, field, text = wire.CodePTYUnavailable, "tty", "no terminal could be opened"
	default:
		field, text = "", fmt.Sprintf("the process could not be started: %v", e.Err)
	}
	return &wire.Error{Code: code, Field: field, Message: text, Details: map[string]any{"kind": string(e.Kind)}}
}

// explain finds out which part of a start the errno of a failed fork or exec was
// about. The kernel does not say, so it looks after the fact; the hot path pays nothing.
func explain(s *Spec, program string, err error) error {
	kind, at := StartOther, ""
	if s.Dir != "" {
		info, statErr := os.Stat(s.Dir)
		switch {
		case errors.Is(statErr, os.ErrNotExist), errors.Is(statErr, unix.ENOTDIR):
			return &StartError{Kind: WorkdirMissing, Path: s.Dir, Err: err}
		case statErr == nil && !info.IsDir():
			return &StartError{Kind: WorkdirNotDirectory, Path: s.Dir, Err: unix.ENOTDIR}
		case statErr == nil && errors.Is(err, unix.EACCES) && unix.Access(s.Dir, unix.X_OK) != nil:
			return &StartError{Kind: WorkdirPermission, Path: s.Dir, Err: err}
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT) && exists(s, program):
		kind, at = InterpreterMissing, program
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		kind, at = ProgramNotFound, program
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EISDIR):
		kind, at = ProgramPermission, program
	case errors.Is(err, unix.ENOEXEC):
		kind, at = ProgramFormat, program
	case errors.Is(err, unix.E2BIG):
		kind = ArgumentsTooBig
	case errors.Is(err, unix.EINVAL) && hasNUL(s, program):
		kind = ArgumentNUL
	}
	return &StartError{Kind: kind, Path: at, Err: err}
}

func exists(s *Spec, program string) bool {
	if !filepath.IsAbs(program) {
		program = filepath.Join(s.Dir, program)
	}
	_, err := os.Stat(program)
	return err == nil
}

func hasNUL(s *Spec, program string) bool {
	for _, list := range [][]string{s.Argv, s.Env, {s.Dir, program}} {
		for _, v := range list {
			if strings.IndexByte(v, 0) >= 0 {
				return true
			}
		}
	}
	return false
}

// lookProgram finds the program of s: as execvp does, but in the PATH of the child.
func lookProgram(s *Spec) (string, error) {
	if s.Path != "" {
		return s.Path, nil
	}
	name := s.Argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	found := syscall.ENOENT
	for _, dir := range filepath.SplitList(variable(s.Env, "PATH")) {
		if dir == "" {
			continue // an empty element would mean the working directory
		}
		full := filepath.Join(dir, name)
		if !filepath.IsAbs(full) && s.Dir != "" {
			full = filepath.Join(s.Dir, full)
		}
		var st unix.Stat_t
		if unix.Stat(full, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if unix.Access(full, unix.X_OK) == nil {
			return full, nil
		}
		found = syscall.EACCES
	}
	kind := ProgramNotFound
	if found == syscall.EACCES {
		kind = ProgramPermission
	}
	return "", &StartError{Kind: kind, Path: name, Err: found}
}

// variable gives the last value of name in env.
func variable(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			return v
		}
	}
	return ""
}
