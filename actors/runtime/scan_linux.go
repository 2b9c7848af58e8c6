package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// member is one process as /proc/PID/stat tells it.
type member struct {
	pid     int
	state   byte
	parent  int
	group   int
	session int
	start   uint64 // clock ticks since boot
}

func (m member) live() bool { return m.state != 'Z' && m.state != 'X' && m.state != 'x' }

// readStat reads /proc/PID/stat.
func readStat(pid int) (member, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return member{}, wrapPath("open", path, err)
	}
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	_ = unix.Close(fd)
	if err != nil {
		return member{}, wrapPath("read", path, err)
	}
	m, err := parseStat(buf[:n])
	if err != nil {
		return member{}, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

var errStat = errors.New("not a stat line")

// parseStat reads fields 1, 3 to 6 and 22. The name in field 2 may hold anything,
// blanks and parentheses included, so the rest starts after the last parenthesis.
func parseStat(line []byte) (member, error) {
	open, shut := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 2 || shut < open {
		return member{}, errStat
	}
	pid, err := strconv.Atoi(string(line[:open-1]))
	fields := bytes.Fields(line[shut+1:])
	if err != nil || len(fields) < 20 || len(fields[0]) != 1 {
		return member{}, errStat
	}
	m := member{pid: pid, state: fields[0][0]}
	for i, to := range []*int{&m.parent, &m.group, &m.session} {
		if *to, err = strconv.Atoi(string(fields[i+1])); err != nil {
			return member{}, errStat
		}
	}
	if m.start, err = strconv.ParseUint(string(fields[19]), 10, 64); err != nil {
		return member{}, errStat
	}
	return m, nil
}

// signal sends sig to m and to nobody who inherited its number: the pidfd is opened
// first, then the start time is compared. ESRCH when m is gone.
func (m member) signal(sig unix.Signal) error { return m.send(sig, 0) }

// signalGroup sends sig to the group that m leads. EINVAL before Linux 6.9.
func (m member) signalGroup(sig unix.Signal) error { return m.send(sig, signalGroup) }

func (m member) send(sig unix.Signal, flags int) error {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := readStat(m.pid)
	if err != nil || now.start != m.start {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, sig, nil, flags)
}

// scan lists the live members of c's tree, its leader included unless it was reaped
// (whoever has its number then is somebody else).
//
// Seeds are the leader, carriers of the tag, and members of the leader's session or
// group that carry no other child's tag; every descendant of a seed belongs to it. Only
// descendants of this process are looked at: being a subreaper, it loses none.
// Below the leader of another child nothing is c's.
func (f *Forker) scan(c *Child, leaderReaped bool) ([]member, error) {
	if leaderReaped && f.noOrphans() {
		return nil, nil // whoever outlived the leader is a child of ours, or below one
	}
	all, err := processes()
	if err != nil {
		return nil, fmt.Errorf("scan /proc: %w", err)
	}
	s := scanner{
		all: all, self: f.self, tag: []byte(c.tag),
		known: make(map[int]verdict, len(all)), buf: make([]byte, 0, 4096),
	}
	f.mu.Lock()
	for pid := range f.live {
		s.known[pid] = foreign
	}
	// Once a newer child leads the number, its session says nothing about c.
	number := f.live[c.PID]
	mine := number == c || number == nil
	f.mu.Unlock()
	if !leaderReaped {
		s.known[c.PID] = ours
	}
	var out []member
	for pid, m := range all {
		if pid == c.PID && !leaderReaped {
			if m.live() && (c.StartTime == 0 || m.start == c.StartTime) {
				out = append(out, m)
			}
			continue
		}
		if m.live() && s.judge(m, c.PID, mine) == ours {
			out = append(out, m)
		}
	}
	return out, nil
}

// verdict on a process of a snapshot.
type verdict byte

const (
	stranger verdict = iota // by itself; what is below it may still be ours
	foreign                 // of another child, with all below it
	ours
)

// scanner attributes the processes of one snapshot.
type scanner struct {
	all   map[int]member
	self  int
	tag   []byte
	known map[int]verdict
	buf   []byte
}

// judge goes by the nearest ancestor about whom something is known.
func (s *scanner) judge(m member, leader int, mine bool) verdict {
	if known, ok := s.known[m.pid]; ok {
		return known
	}
	s.known[m.pid] = stranger // also ends a cycle of a snapshot that tore
	parent, ok := s.all[m.parent]
	if m.pid == s.self || m.pid <= 1 || !ok {
		return stranger
	}
	v := s.judge(parent, leader, mine)
	if v == stranger && s.descends(m) {
		own, other := s.tagOf(m.pid)
		if own || mine && !other && (m.session == leader || m.group == leader) {
			v = ours
		}
	}
	s.known[m.pid] = v
	return v
}

// descends says whether m is a descendant of this process.
func (s *scanner) descends(m member) bool {
	for range len(s.all) {
		if m.parent == s.self {
			return true
		}
		parent, ok := s.all[m.parent]
		if !ok {
			return false
		}
		m = parent
	}
	return false
}

// execLooks is how often an empty environment is looked at again.
const execLooks = 2

// tagOf reads the environment a process was started with: whether it carries our tag,
// or another one. One that may not be read carries none.
func (s *scanner) tagOf(pid int) (own, other bool) {
	path := "/proc/" + strconv.Itoa(pid) + "/environ"
	s.buf = readAll(path, s.buf[:0])
	for range execLooks {
		if len(s.buf) > 0 {
			break
		}
		// Cleared, or just being replaced by an exec: then it is there in a moment.
		t := time.NewTimer(time.Millisecond)
		<-t.C
		s.buf = readAll(path, s.buf[:0])
	}
	prefix := []byte(TagVariable + "=")
	for entry := range bytes.SplitSeq(s.buf, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, prefix); ok {
			if bytes.Equal(value, s.tag) {
				return true, false
			}
			other = true
		}
	}
	return false, other
}

// readAll appends a file's content to buf; what cannot be read is left out.
func readAll(path string, buf []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return buf
	}
	defer unix.Close(fd)
	for {
		if cap(buf)-len(buf) < 1024 {
			grown := make([]byte, len(buf), 2*cap(buf)+4096)
			copy(grown, buf)
			buf = grown
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if n <= 0 || err != nil {
			return buf
		}
		buf = buf[:len(buf)+n]
	}
}

// noOrphans says that no live process was reparented to this one. It costs the reading
// of one file, where a scan costs one per process of the host. The kernel gives orphans
// to the first thread of a subreaper, forked children belong to the forking thread; the
// probe has seen it.
func (f *Forker) noOrphans() bool {
	if !f.orphansOnMain() {
		return false
	}
	orphans, err := f.orphans()
	if err != nil {
		return false
	}
	for _, pid := range orphans {
		if m, err := readStat(pid); err != nil || m.live() {
			return false
		}
	}
	return true
}

// orphans lists the children of the main thread.
func (f *Forker) orphans() ([]int, error) {
	pid := strconv.Itoa(f.self)
	path := "/proc/" + pid + "/task/" + pid + "/children"
	if err := unix.Access(path, unix.R_OK); err != nil {
		return nil, wrapPath("access", path, err)
	}
	var buf [512]byte
	return parsePIDs(string(readAll(path, buf[:0])))
}

// processes is a snapshot of /proc. Kernel threads and processes that end meanwhile
// are left out.
func processes() (map[int]member, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := make(map[int]member, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if m, err := readStat(pid); err == nil {
			out[pid] = m
		}
	}
	return out, nil
}
