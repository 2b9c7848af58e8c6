package runtime

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// mount is one line of /proc/self/mountinfo about a cgroup hierarchy.
type mount struct {
	root    string   // the directory of the hierarchy that is mounted
	point   string   // where
	kind    string   // "cgroup" or "cgroup2"
	options []string // of the super block: the v1 controllers
}

var errNoCgroup = errors.New("no such cgroup hierarchy is mounted")

// parseMounts gives the cgroup mounts of a mountinfo text.
func parseMounts(text string) []mount {
	var out []mount
	for line := range strings.Lines(text) {
		// 36 35 98:0 /root /point options [optional...] - type source superoptions
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		if !ok {
			continue
		}
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 6 || len(right) < 3 || (right[0] != "cgroup" && right[0] != "cgroup2") {
			continue
		}
		out = append(out, mount{
			root: unescape(left[3]), point: unescape(left[4]),
			kind: right[0], options: strings.Split(right[2], ","),
		})
	}
	return out
}

// unescape undoes the octal escapes of mountinfo (space, tab, newline, backslash).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseMembership gives the paths of a /proc/PID/cgroup text: by v1 controller, and
// under the empty name that of v2.
func parseMembership(text string) map[string]string {
	out := make(map[string]string)
	for line := range strings.Lines(text) {
		// 4:memory:/path, 1:cpu,cpuacct:/path, 0::/path; the path may hold colons.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			out[controller] = fields[2]
		}
	}
	return out
}

// cgroupDir finds the directory of this process in the v2 hierarchy (controller empty)
// or in that of a v1 controller. A membership outside of what is mounted is an error.
func cgroupDir(mountinfo, membership, controller string) (string, error) {
	own, ok := parseMembership(membership)[controller]
	if !ok {
		return "", errNoCgroup
	}
	for _, m := range parseMounts(mountinfo) {
		if controller == "" && m.kind != "cgroup2" ||
			controller != "" && (m.kind != "cgroup" || !slices.Contains(m.options, controller)) {
			continue
		}
		rel, ok := strings.CutPrefix(path.Clean(own), strings.TrimSuffix(m.root, "/"))
		if !ok || (rel != "" && rel[0] != '/') {
			continue
		}
		return path.Join(m.point, rel), nil
	}
	return "", errNoCgroup
}

// keyed gives the value of key in a flat keyed cgroup file ("populated 0\n…"), the
// form of cgroup.events, memory.events and v1's memory.oom_control alike.
func keyed(text []byte, key string) (uint64, bool) {
	for len(text) > 0 {
		line := text
		if i := slices.Index(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if len(line) <= len(key) || line[len(key)] != ' ' || string(line[:len(key)]) != key {
			continue
		}
		n, err := strconv.ParseUint(string(line[len(key)+1:]), 10, 64)
		return n, err == nil
	}
	return 0, false
}

// parsePIDs gives the numbers of a cgroup.procs or children text.
func parsePIDs(text string) ([]int, error) {
	var out []int
	for field := range strings.FieldsSeq(text) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("not a list of pids: %q", field)
		}
		if pid > 0 { // 0 stands for a process of another pid namespace
			out = append(out, pid)
		}
	}
	return out, nil
}
