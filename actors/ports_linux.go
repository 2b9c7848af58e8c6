package actors

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Who listens on a port.
const (
	ownerProcess = "process" // one of the process's tree
	ownerOther   = "other"
	ownerUnknown = "unknown" // it could not be seen
)

// listeners gives the sockets, as inode numbers, that listen on a TCP port of this host:
// of the network namespace of the worker, v4 and v6. Nobody connects: a server that takes
// one connection, or logs each, is not disturbed.
func listeners(port int) ([]string, error) {
	var found []string
	var missing error
	seen := false
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		err := listening(path, port, &found)
		switch {
		case err == nil:
			seen = true
		case !errors.Is(err, fs.ErrNotExist): // without IPv6 there is no tcp6
			return nil, err
		default:
			missing = err
		}
	}
	if !seen {
		return nil, wire.Errorf(wire.CodeCapabilityMissing, "this host does not tell who listens on its ports (%v)", missing)
	}
	return found, nil
}

// strayLines is how far a list is read behind the last socket that listens. Linux has
// those first; other kernels that pass for it may not.
const strayLines = 256

// listening reads one of the kernel's lists, of a host with many connections no more than
// the start.
func listening(path string, port int, found *[]string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the heading
	for stray := 0; stray < strayLines && lines.Scan(); {
		inode, local, listens := socketOf(lines.Bytes())
		if !listens {
			stray++
		} else if local == port && inode != "0" {
			*found = append(*found, inode)
		}
	}
	return lines.Err()
}

// socketOf reads a line of /proc/net/tcp: number, local and remote address, state (0A is
// LISTEN), and the inode in the tenth field.
func socketOf(line []byte) (inode string, port int, listens bool) {
	fields := bytes.Fields(line)
	if len(fields) < 10 || string(fields[3]) != "0A" {
		return "", 0, false
	}
	_, local, _ := bytes.Cut(fields[1], []byte{':'})
	n, err := strconv.ParseUint(string(local), 16, 16)
	if err != nil {
		return "", 0, false
	}
	return string(fields[9]), int(n), true
}

// ownerOf says whether one of the sockets is open in the tree of a process. Members are
// told by the tag in their environment or that of the nearest ancestor who has one, by
// the session of the leader (0: it has ended), or by its cgroup.
func ownerOf(sockets []string, process string, leader int) string {
	dir, err := os.Open("/proc")
	if err != nil {
		return ownerUnknown
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return ownerUnknown
	}
	t := tree{tag: runtime.TagVariable + "=", process: process, known: map[int]membership{}}
	if leader > 0 {
		t.leader, t.cgroup = leader, cgroupOf(strconv.Itoa(leader))
		if t.cgroup == cgroupOf("self") {
			t.cgroup = "" // it has none of its own
		}
	}
	owner := ownerOther
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || t.of(pid, 0) != member {
			continue
		}
		switch holds(name, sockets) {
		case ownerProcess:
			return ownerProcess
		case ownerUnknown:
			owner = ownerUnknown
		}
	}
	return owner
}

// holds looks for the sockets among the open files of one process.
func holds(pid string, sockets []string) string {
	dir, err := os.Open("/proc/" + pid + "/fd")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return ownerOther // it has ended
		}
		return ownerUnknown
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return ownerUnknown
	}
	for _, name := range names {
		link, err := os.Readlink("/proc/" + pid + "/fd/" + name)
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok && slices.Contains(sockets, strings.TrimSuffix(inode, "]")) {
			return ownerProcess
		}
	}
	return ownerOther
}

// membership of a tree.
type membership uint8

const (
	stranger membership = iota
	member
)

// tree tells the members of one process's tree from others.
type tree struct {
	tag     string // NAME=
	process string
	leader  int
	cgroup  string
	known   map[int]membership
}

// of judges one process, and its ancestors as far as needed.
func (t *tree) of(pid, depth int) membership {
	if m, ok := t.known[pid]; ok {
		return m
	}
	t.known[pid] = stranger // also ends a cycle, where a number was taken again meanwhile
	t.known[pid] = t.judge(pid, depth)
	return t.known[pid]
}

func (t *tree) judge(pid, depth int) membership {
	name := strconv.Itoa(pid)
	if pid == t.leader || t.cgroup != "" && cgroupOf(name) == t.cgroup {
		return member
	}
	environ, _ := os.ReadFile("/proc/" + name + "/environ")
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if tag, ok := bytes.CutPrefix(entry, []byte(t.tag)); ok {
			if string(tag) == t.process {
				return member
			}
			return stranger
		}
	}
	parent, session := relatives(name)
	switch {
	case t.leader > 0 && session == t.leader:
		return member
	case parent <= 1 || depth > 64:
		return stranger
	}
	return t.of(parent, depth+1)
}

// relatives gives the parent and the session of a process; zeros where it has ended. The
// name in the second field of its line may hold anything, so the rest starts behind the
// last parenthesis.
func relatives(pid string) (parent, session int) {
	line, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) < 4 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	session, _ = strconv.Atoi(string(fields[3]))
	return parent, session
}

// cgroupOf is the v2 group of a process; "" where it cannot be told.
func cgroupOf(pid string) string {
	text, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(path, "\n")
		}
	}
	return ""
}
