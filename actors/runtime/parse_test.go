package runtime

import (
	"errors"
	"os"
	"strings"
	"testing"
)

const hybridMounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/uni\040fied rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw
`

const unifiedMounts = `24 1 0:22 / / rw - ext4 /dev/vda rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`

// A container sees its own cgroup as the root of the mount, without a namespace.
const containerMounts = `700 690 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
701 690 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
`

func TestCgroupDir(t *testing.T) {
	for _, c := range []struct {
		name, mounts, membership, controller, want string
	}{
		{"hybrid v2", hybridMounts, "4:memory:/own/x\n0::/\n", "", "/sys/fs/cgroup/uni fied"},
		{"hybrid v2 below", hybridMounts, "0::/a/b:c\n", "", "/sys/fs/cgroup/uni fied/a/b:c"},
		{"hybrid v1 memory", hybridMounts, "4:memory:/own/x\n0::/\n", "memory", "/sys/fs/cgroup/memory/own/x"},
		{"co-mounted controllers", hybridMounts, "1:cpu,cpuacct:/q\n", "cpuacct", "/sys/fs/cgroup/cpu,cpuacct/q"},
		{"unified", unifiedMounts, "0::/user.slice/user-1000.slice/session-3.scope\n", "", "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope"},
		{"unified has no v1 memory", unifiedMounts, "0::/x\n", "memory", ""},
		{"the mount's root is cut off", containerMounts, "0::/docker/abc/sub\n", "", "/sys/fs/cgroup/sub"},
		{"exactly the mount's root", containerMounts, "7:memory:/docker/abc\n", "memory", "/sys/fs/cgroup/memory"},
		{"outside of what is mounted", containerMounts, "0::/docker/abcd\n", "", ""},
		{"above what is mounted", containerMounts, "0::/docker\n", "", ""},
		{"no cgroup", "24 1 0:22 / / rw - ext4 /dev/vda rw\n", "0::/\n", "", ""},
		{"nothing", "", "", "", ""},
		{"broken lines", "x\n1 2 3 / /m\n - cgroup2\n", "0::/\nq\n1:\n", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := cgroupDir(c.mounts, c.membership, c.controller)
			if got != c.want || (err != nil) != (c.want == "") || (err != nil && !errors.Is(err, errNoCgroup)) {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestKeyed(t *testing.T) {
	for _, c := range []struct {
		name, text, key string
		want            uint64
		ok              bool
	}{
		{"cgroup.events", "populated 1\nfrozen 0\n", "populated", 1, true},
		{"second line", "populated 1\nfrozen 0\n", "frozen", 0, true},
		{"memory.events of v2", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n", "oom_kill", 2, true},
		{"memory.oom_control of v1", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n", "oom_kill", 4, true},
		{"v1 before 4.13", "oom_kill_disable 0\nunder_oom 0\n", "oom_kill", 0, false},
		{"no last newline", "oom_kill 7", "oom_kill", 7, true},
		{"a longer key", "oom_kill_disable 1\n", "oom_kill", 0, false},
		{"not a number", "oom_kill max\n", "oom_kill", 0, false},
		{"empty", "", "oom_kill", 0, false},
		{"empty lines", "\n\noom_kill 1\n", "oom_kill", 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, ok := keyed([]byte(c.text), c.key); got != c.want || ok != c.ok {
				t.Errorf("got %d, %t; want %d, %t", got, ok, c.want, c.ok)
			}
		})
	}
}

const statLine = "4711 (a) b (c)) S 1 22 33 34816 22 4194304 1 0 0 0 0 0 0 0 20 0 1 0 190813 2 3 4\n"

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte(statLine))
	if want := (member{pid: 4711, state: 'S', parent: 1, group: 22, session: 33, start: 190813}); got != want || err != nil {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 (x)", "1 (x) S", "x (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19", "() S"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a stat line", bad)
		}
	}
	own, err := readStat(os.Getpid())
	if err != nil || own.pid != os.Getpid() || own.parent != os.Getppid() || own.start == 0 {
		t.Errorf("of this process: %+v, %v", own, err)
	}
}

func TestParsePIDs(t *testing.T) {
	if got, err := parsePIDs("1\n22 0\n333\n"); err != nil || len(got) != 3 || got[2] != 333 {
		t.Error(got, err)
	}
	if _, err := parsePIDs("1 x"); err == nil {
		t.Error("taken")
	}
}

func TestParseSubtree(t *testing.T) {
	for name, want := range map[string]bool{
		"limpet-12-345": true, "limpet-12-345-1": true, "limpet-12": false, "limpet-a-1": false,
		"limpet--1-2": false, "other-1-2": false, "limpet-1-2-3-4": false,
	} {
		if _, _, ok := parseSubtree(name); ok != want {
			t.Errorf("%s: %t", name, ok)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{hybridMounts, unifiedMounts, containerMounts, statLine, "populated 1\nfrozen 0\n", `1 2 3 \0 \777 - cgroup2 a b`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if dir, err := cgroupDir(text, text, ""); err == nil && !strings.HasPrefix(dir, "/") && strings.HasPrefix(text, "/") {
			t.Errorf("relative: %q", dir)
		}
		keyed([]byte(text), "populated")
		_, _ = parsePIDs(text)
		if m, err := parseStat([]byte(text)); err == nil && m.state == 0 {
			t.Errorf("%q: no state", text)
		}
		parseSubtree(text)
	})
}
