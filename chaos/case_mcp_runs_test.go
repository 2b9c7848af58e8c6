package chaos

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// mcpCase is one call of the tool and what a model sees of it.
type mcpCase struct {
	name  string // the number of the case, and what is right
	needs string
	args  params
	// text is the whole text, with P for the process; not looked at when empty.
	text string
	// data are fields of the structured content; nil: it is not there.
	data  params
	check func(t *testing.T, c *mcpClient, r result)
}

// sees runs each case over a connection of its own. No call may take long, and nothing
// that it started may live after it.
func sees(t *testing.T, h *mcpHost, cases []mcpCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.needs != "" {
				need(t, tt.needs)
			}
			c := stdio(t, h.Server, nil)
			var r result
			within(t, 2*soon, func() { r = c.call(tt.args) })
			r.is(t, tt.text, tt.data)
			if id := r.str("process_id"); id != "" && r.str("state") != "running" {
				if left := tagged(id); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
			if tt.check != nil {
				tt.check(t, c, r)
			}
		})
	}
}

// is compares a result with a text, where P is its process, and with fields.
func (r result) is(t testing.TB, text string, data params) {
	t.Helper()
	got := r.text
	if id := r.str("process_id"); id != "" {
		got = strings.ReplaceAll(got, id, "P")
	}
	if text != "" && got != text {
		t.Errorf("text\n%.2000s\nwant\n%s", got, text)
	}
	for name, want := range data {
		if n, ok := want.(int); ok {
			want = float64(n)
		}
		if got := r.data[name]; got != want {
			t.Errorf("%s is %.300q, want %.300q, in %.500v", name, fmt.Sprint(got), fmt.Sprint(want), r.data)
		}
	}
}

// ok is an exit with code 0.
func ok(stdout string) params {
	return params{"exit_code": 0, "state": "completed", "reason": "exit", "stdout": stdout, "stderr": "", "error": nil}
}

// fails is an exit with another code.
func fails(code int, stdout string) params {
	return params{"exit_code": code, "state": "failed", "reason": "exit", "stdout": stdout, "error": nil}
}

// overdue is a command that was ended by its timeout.
func overdue(signal string, code int, stdout string) params {
	return params{
		"exit_code": code, "signal": signal, "state": "failed", "reason": "timeout", "on_timeout": "kill",
		"stdout": stdout, "cancel_requested_by": nil, "yielded": nil,
	}
}

func run(command string) params { return params{"command": command} }

func timed(command string) params {
	return params{"command": command, "timeout_s": 0.5, "grace_s": 0.3}
}

const (
	endedOne = "[ended 1 process that it had left running]"
	overHalf = "[timed out after 0.5 s (SIGTERM, exit code 143)"
)

// TestCaseMCPHangs: an answer comes when the command has ended or its time is up, and says
// what else there was.
func TestCaseMCPHangs(t *testing.T) {
	kept := func(stdout string, killed int) params {
		d := ok(stdout)
		d["leftovers_killed"] = killed
		return d
	}
	sees(t, newMCPHost(t), []mcpCase{
		{name: "Hang1BackgroundChild", args: run("sleep 40 & echo started"), text: "started\n" + endedOne, data: kept("started\n", 1)},
		{name: "Hang1InTheBackgroundOfASubshell", args: run("(sleep 40; echo late) & echo ok"), data: ok("ok\n")},
		{name: "Hang1Coprocess", args: run("coproc { sleep 40; }; echo ok"), data: ok("ok\n")},
		{name: "Hang3HeldStderr", args: run("sleep 40 </dev/null >/dev/null & echo ok"), text: "ok\n" + endedOne, data: kept("ok\n", 1)},
		{name: "Hang3HeldStdout", args: run("sleep 40 </dev/null 2>/dev/null & echo ok"), text: "ok\n" + endedOne, data: kept("ok\n", 1)},
		{name: "Hang3Setsid", args: run("setsid sleep 40 & echo ok"), text: "ok\n" + endedOne, data: kept("ok\n", 1)},
		{name: "Hang3ManyJobs", args: run("for i in 1 2 3 4 5 6 7; do sleep 40 & done; echo ok"), text: "ok\n[ended 7 processes that it had left running]", data: kept("ok\n", 7)},
		{name: "Hang3NonzeroExitWithAJob", args: run("sleep 40 & exit 8"), text: "(no output)\n[exit code 8]\n" + endedOne, data: fails(8, "")},
		{name: "Hang5ChildOutlivesTheDeadline", args: timed("echo first; sleep 30; :"), text: "first\n" + overHalf + "; above is what it wrote until then]", data: overdue("TERM", 143, "first\n")},
		{name: "Hang8PipelineAtTheDeadline", args: timed("tail -f /dev/null | cat"), text: "(no output)\n" + overHalf + "]", data: overdue("TERM", 143, "")},
		{name: "Hang8IgnoresTERM", args: timed("trap '' TERM; echo first; while :; do :; done"), text: "first\n[timed out after 0.5 s (SIGKILL, exit code 137); above is what it wrote until then]", data: overdue("KILL", 137, "first\n")},
		{name: "Hang8Stopped", args: timed("echo first; kill -STOP $$; sleep 40"), data: overdue("TERM", 143, "first\n")},
		{name: "Hang12RedirectedJob", args: run("sleep 40 </dev/null >/dev/null 2>&1 & echo ok"), text: "ok\n" + endedOne, data: kept("ok\n", 1)},
		{name: "Tree14ChildBurnsOn", needs: "python3", args: timed("python3 -c 'import time; time.sleep(300)'; echo done"), text: "(no output)\n" + overHalf + "]", data: overdue("TERM", 143, "")},
		{
			name: "Tree24KillOfItsOwnGroup", args: run("kill -TERM 0; echo survived"), text: "(no output)\n[ended by SIGTERM, exit code 143]",
			data:  params{"exit_code": 143, "signal": "TERM", "reason": "signal", "state": "failed"},
			check: func(_ *testing.T, c *mcpClient, _ result) { c.ok(run("true")) },
		},
		{name: "Time106NothingAfterTheDeadline", args: timed("sleep 6; echo late"), text: "(no output)\n" + overHalf + "]", data: overdue("TERM", 143, "")},
		{name: "Time108OutputBeforeTheDeadline", args: timed("printf before; echo error >&2; sleep 30"), text: "before\n[stderr]\nerror\n" + overHalf + "; above is what it wrote until then]", data: overdue("TERM", 143, "before")},
		{name: "Time108LastWords", args: timed("trap 'echo last words; exit 9' TERM; echo before; sleep 30 & wait"), text: "before\nlast words\n[timed out after 0.5 s (exit code 9); above is what it wrote until then]"},
		{name: "Time114InnerLimit", args: params{"command": "timeout 0.3 sleep 30", "timeout_s": 20}, text: "(no output)\n[exit code 124]", data: fails(124, "")},
		{name: "Time114OuterLimit", args: timed("timeout 20 sleep 30"), text: "(no output)\n" + overHalf + "]", data: overdue("TERM", 143, "")},
	})
}

// TestCaseMCPExits: how a command ended is told as it was, and a failing command is no
// failing tool.
func TestCaseMCPExits(t *testing.T) {
	const gate = `cat > gate.py <<'E'
import os, sys
try:
    for i in range(50000): print("line", i)
    sys.stdout.flush()
except BrokenPipeError:
    os._exit(0)
os._exit(4)
E
`
	killed := params{"exit_code": 137, "signal": "KILL", "reason": "signal", "state": "failed"}
	sees(t, newMCPHost(t), []mcpCase{
		{name: "Exit27SignalIsNoSuccess", args: run("echo building; kill -s KILL $BASHPID"), text: "building\n[ended by SIGKILL, exit code 137]", data: killed},
		{name: "Exit27SignalOfAChild", args: run("sh -c 'kill -9 $$' 2>/dev/null; exit $?"), data: fails(137, "")},
		{name: "Exit27Aborted", args: run("exec sh -c 'kill -ABRT $$'"), data: params{"exit_code": 134, "signal": "ABRT", "reason": "signal", "state": "failed"}},
		{name: "Exit31PipelineHidesAFailure", needs: "python3", args: run(gate + `python3 gate.py | head -1; echo "${PIPESTATUS[*]}"`), text: "line 0\n0 0\n", data: ok("line 0\n0 0\n")},
		{name: "Exit31WithoutAPipe", needs: "python3", args: run(gate + "python3 gate.py >/dev/null"), text: "(no output)\n[exit code 4]", data: fails(4, "")},
		{name: "Exit31FirstStageFails", args: run("false | true"), text: "(no output)", data: ok("")},
		{name: "Exit31Pipefail", args: run("set -o pipefail; (exit 4) | true"), text: "(no output)\n[exit code 4]", data: fails(4, "")},
		{name: "Exit31StatusBehindATee", args: run("(echo x; exit 6) | tee log; exit ${PIPESTATUS[0]}"), text: "x\n[exit code 6]", data: fails(6, "x\n")},
		{name: "ExitNotFound", args: run("no-such-command-here"), data: fails(127, "")},
		{name: "ExitNotExecutable", args: run("/etc/passwd"), data: fails(126, "")},
		{name: "ExitOver255", args: run("exit 300"), text: "(no output)\n[exit code 44]", data: fails(44, "")},
		{name: "ExitErrexit", args: run("set -e; false; echo no"), text: "(no output)\n[exit code 1]", data: fails(1, "")},
		{name: "Out49FastFailure", args: run("true"), check: func(t *testing.T, c *mcpClient, _ result) {
			for range 40 {
				c.ok(run("echo 'boom: no module' >&2; exit 1")).is(t, "boom: no module\n[exit code 1]", params{"stderr": "boom: no module\n", "exit_code": 1})
			}
		}},
		{name: "A42NonzeroIsAnAnswer", args: run("exit 3"), check: func(t *testing.T, _ *mcpClient, r result) {
			if r.failed || r.code() != "" || r.data["state"] != "failed" {
				t.Errorf("failed %t, %v", r.failed, r.data)
			}
		}},
	})
}

// TestCaseMCPOutput: what was written is what a model reads; where it is not, it is told
// so, and how to get the rest.
func TestCaseMCPOutput(t *testing.T) {
	sees(t, newMCPHost(t), []mcpCase{
		{name: "Out37CharacterInPieces", args: run(`printf '\xe8\xaa'; sleep 0.2; printf '\x9e\n'`), text: "語\n", data: ok("語\n")},
		{name: "Out39NotUTF8", args: run(`printf 'ok \x80\xfe bad\n'`), text: "ok \uFFFD\uFFFD bad\n[not UTF-8: 2 bytes, shown as U+FFFD]", data: params{"encoding_loss_bytes": 2, "total_bytes": 10}, check: hasBytes("ok \x80\xfe bad\n")},
		{name: "Out39ReplacementCharacterOfItsOwn", args: run(`printf 'fine \uFFFD here\n'`), text: "fine \uFFFD here\n", data: params{"encoding_loss_bytes": nil}},
		{name: "Out41SixteenRandomBytes", args: run("head -c 16 /dev/urandom | tee raw16"), data: params{"total_bytes": 16, "next_offset": 16}, check: func(t *testing.T, c *mcpClient, r result) {
			hasBytes(c.ok(run("cat raw16")).binary(c))(t, c, r)
		}},
		{name: "Out41BinaryIsWithheld", args: run(`printf '\1\2\xff\3%.0s' {1..1250}`), data: params{"stdout_omitted_bytes": 5000, "total_bytes": 5000, "encoding_loss_bytes": nil}, check: func(t *testing.T, c *mcpClient, r result) {
			if !strings.HasPrefix(r.text, "[binary output on stdout withheld: 5000 bytes") || !strings.Contains(r.text, "view base64") {
				t.Errorf("%s", r.text)
			}
			c.ok(params{"action": "read", "process_id": r.str("process_id")}).is(t, "[binary output on stdout withheld: 5000 bytes; view base64 has them]\n[end of output; completed, exit code 0]", nil)
			hasBytes(strings.Repeat("\x01\x02\xff\x03", 1250))(t, c, r)
		}},
		{name: "Out41ControlBytesAlone", args: run(`head -c 5000 /dev/zero | tr '\0' '\1'`), text: "(no visible output in 5000 bytes)", data: params{"stdout": ""}, check: hasBytes(strings.Repeat("\x01", 5000))},
		{name: "Out41NULsOfFind", args: params{"command": `printf 'a\0b\0'`, "view": "text"}, data: params{"stdout": "a\x00b\x00", "total_bytes": 4}, check: hasBytes("a\x00b\x00")},
		{name: "Out43Redraws", args: run(`for i in $(seq 0 500); do printf '\rfetch %3d%%' $((i/5)); done; echo`), text: "fetch 100%\n", data: params{"stdout": "fetch 100%\n", "total_bytes": 5512}, check: func(t *testing.T, c *mcpClient, r result) {
			p := c.ok(params{"action": "read", "process_id": r.str("process_id"), "view": "text"})
			if n := strings.Count(p.str("output"), "\r"); n != 501 || p.num("next_offset") != 5512 {
				t.Errorf("%d redraws in the raw view", n)
			}
		}},
		{name: "Out43Colours", args: run(`for i in $(seq 300); do printf '\e[2K\r\e[%dmstep %d\e[0m' $((i%8+30)) $i; done; echo; printf '\e]0;title\a\e[?25l\e]8;;http://x\e\\link\e]8;;\e\\\n'`), text: "step 300\nlink\n"},
		{name: "Out45BothEnds", args: run("seq 1 50000; echo 'FATAL: missing key' >&2; exit 3"), data: params{"exit_code": 3, "stderr": "FATAL: missing key\n", "total_bytes": 288_894 + 19}, check: func(t *testing.T, c *mcpClient, r result) {
			if !strings.HasPrefix(r.text, "1\n2\n") || !strings.HasSuffix(r.text, "\n49999\n50000\n[stderr]\nFATAL: missing key\n[exit code 3]") || len(r.text) > 31_000 {
				t.Errorf("%d bytes: %.50q … %q", len(r.text), r.text, r.text[max(0, len(r.text)-80):])
			}
			r.goesOn(t, c, 50_000)
		}},
		{name: "Out45OneLongLine", args: run("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo LAST"), data: params{"exit_code": 0, "total_bytes": 5_000_006}, check: func(t *testing.T, _ *mcpClient, r result) {
			if len(r.text) > 31_000 || !strings.HasSuffix(r.text, "\nLAST\n") || r.num("stdout_omitted_bytes") < 4_900_000 || !strings.Contains(r.text, "bytes omitted; action read, process_id "+r.str("process_id")+", offset ") {
				t.Errorf("%d bytes, %v omitted", len(r.text), r.num("stdout_omitted_bytes"))
			}
		}},
		{name: "Out45FloodOfErrors", args: run("seq 1 50000 >&2; seq 1 50000; exit 1"), check: func(t *testing.T, _ *mcpClient, r result) {
			out, errs := r.str("stdout"), r.str("stderr")
			if len(out)+len(errs) > 62_000 || !strings.HasSuffix(out, "\n50000\n") || !strings.HasSuffix(errs, "\n50000\n") || r.num("stderr_omitted_bytes") <= 0 {
				t.Errorf("%d and %d bytes", len(out), len(errs))
			}
		}},
		{name: "Out45LinesAskedFor", args: params{"command": "seq 10", "max_lines": 2}, text: "1\n[8 lines, 16 of 21 bytes omitted; action read, process_id P, offset 2]\n10\n", data: params{"stdout_omitted_bytes": 16}},
		{name: "Out55FakedEnd", args: run("printf 'x'; echo '__DONE_17__ 0'; printf 'no newline at end'"), text: "x__DONE_17__ 0\nno newline at end", data: ok("x__DONE_17__ 0\nno newline at end")},
		{name: "Out55FakedNotice", args: run("echo '[exit code 0]'; exit 5"), text: "[exit code 0]\n[exit code 5]", data: fails(5, "[exit code 0]\n")},
		{name: "Out55FakedResult", args: run(`echo '{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"exit_code":0}}}'; exit 5`), data: params{"exit_code": 5}},
		{name: "Out55WhiteSpace", args: run(`printf '  \n\n'`), text: "  \n\n", data: ok("  \n\n")},
		{name: "OutNothing", args: run("true"), text: "(no output)", data: ok("")},
		{name: "OutOnlyStderr", args: run("echo warn >&2"), text: "warn\n", data: params{"stdout": "", "stderr": "warn\n", "exit_code": 0}},
		{name: "OutDiskFull", args: run("echo hi > /dev/full"), data: fails(1, "")},
		{name: "Res115EndlessOutput", args: timed("yes"), data: params{"reason": "timeout", "exit_code": 143}, check: func(t *testing.T, c *mcpClient, r result) {
			if !strings.HasPrefix(r.text, "y\ny\n") || len(r.text) > 31_000 || !strings.Contains(r.text, "omitted; action read, process_id ") {
				t.Errorf("%d bytes: %q", len(r.text), r.text[max(0, len(r.text)-300):])
			}
		}},
	})
}

// binary is the output of a process, to the byte.
func (r result) binary(c *mcpClient) string {
	c.t.Helper()
	var all strings.Builder
	for offset, more := 0.0, true; more; {
		p := c.ok(params{"action": "read", "process_id": r.str("process_id"), "view": "base64", "offset": offset, "max_bytes": 100_000})
		b, err := base64.StdEncoding.DecodeString(p.str("output"))
		if err != nil || p.num("next_offset")-offset != float64(len(b)) {
			c.t.Fatalf("%d bytes from %v to %v: %v", len(b), offset, p.num("next_offset"), err)
		}
		all.Write(b)
		offset, more = p.num("next_offset"), p.data["has_more"] == true
	}
	return all.String()
}

// hasBytes: what was written can be had to the byte, and no text breaks JSON.
func hasBytes(want string) func(*testing.T, *mcpClient, result) {
	return func(t *testing.T, c *mcpClient, r result) {
		t.Helper()
		if got := r.binary(c); got != want || !utf8.ValidString(r.text) {
			t.Errorf("%d bytes: %.60q, want %d: %.60q", len(got), got, len(want), want)
		}
	}
}

// goesOn reads stdout from where the text says that something was left out, and finds
// all lines 1 to n in the text and in what it reads.
func (r result) goesOn(t *testing.T, c *mcpClient, n int) {
	t.Helper()
	var lines, omitted, total, offset int
	from := strings.Index(r.text, "\n[")
	if _, err := fmt.Sscanf(r.text[from+1:], "[%d lines, %d of %d bytes omitted; action read, process_id "+r.str("process_id")+", offset %d]", &lines, &omitted, &total, &offset); err != nil {
		t.Fatalf("%v in %.200s", err, r.text[from:])
	}
	if float64(omitted) != r.num("stdout_omitted_bytes") {
		t.Errorf("%d omitted, and %v", omitted, r.num("stdout_omitted_bytes"))
	}
	all := r.text[:from+1]
	for len(all) < from+1+omitted {
		p := c.ok(params{"action": "read", "process_id": r.str("process_id"), "offset": offset, "stream": "stdout", "max_bytes": 100_000})
		all += p.str("output")
		offset = int(p.num("next_offset"))
	}
	for i, line := range strings.SplitN(all, "\n", lines) {
		if i < lines-1 && line != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	if lines > n {
		t.Errorf("%d lines of %d left out", lines, n)
	}
}
