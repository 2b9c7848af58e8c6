package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

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
func (f *Forker) scan(c *Child, leaderReaped bool) ([]member, error) {
	all, err := processes()
	if err != nil {
		return nil, fmt.Errorf("scan /proc: %w", err)
	}
	f.mu.Lock()
	number := f.live[c.PID]
	f.mu.Unlock()
	// Once a newer child leads the number, its session says nothing about c.
	mine := number == c || number == nil
	s := scanner{
		all: all, self: f.self, tag: []byte(c.tag),
		verdict: make(map[int]bool, len(all)), buf: make([]byte, 0, 4096),
	}
	if !leaderReaped {
		s.verdict[c.PID] = true
	}
	var out []member
	for pid, m := range all {
		if pid == c.PID && !leaderReaped {
			if m.live() && (c.StartTime == 0 || m.start == c.StartTime) {
				out = append(out, m)
			}
			continue
		}
		if m.live() && s.belongs(m, c.PID, mine) {
			out = append(out, m)
		}
	}
	return out, nil
}

// scanner attributes the processes of one snapshot.
type scanner struct {
	all     map[int]member
	self    int
	tag     []byte
	verdict map[int]bool
	buf     []byte
}

// belongs decides by the nearest ancestor about whom something is known.
func (s *scanner) belongs(m member, leader int, mine bool) bool {
	if known, ok := s.verdict[m.pid]; ok {
		return known
	}
	s.verdict[m.pid] = false // also ends a cycle of a snapshot that tore
	if m.pid == s.self || m.pid <= 1 {
		return false
	}
	parent, ok := s.all[m.parent]
	switch {
	case !ok:
		return false // gone since, or not a descendant of ours
	case s.belongs(parent, leader, mine):
		s.verdict[m.pid] = true
		return true
	case !s.descends(m):
		return false
	}
	own, other := s.tagOf(m.pid)
	s.verdict[m.pid] = own || mine && !other && (m.session == leader || m.group == leader)
	return s.verdict[m.pid]
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

// tagOf reads the environment a process was started with: whether it carries our tag,
// or another one. One that may not be read carries none.
func (s *scanner) tagOf(pid int) (own, other bool) {
	s.buf = readAll("/proc/"+strconv.Itoa(pid)+"/environ", s.buf[:0])
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
	if !f.orphansOnMain {
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
