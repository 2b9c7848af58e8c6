package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// follows are the actions on a process, with what each needs.
var follows = map[string]params{
	"read": {}, "wait": {}, "wait_for": {"for": "exit"}, "status": {}, "write": {"stdin": "typed\n"}, "resize": {"rows": 5, "cols": 5},
	"signal": {"signal": "TERM"}, "terminate": {}, "search": {"pattern": "x"},
}

func followUp(action, id string, more params) params {
	args := params{"action": action, "process_id": id}
	for _, p := range []params{follows[action], more} {
		maps.Copy(args, p)
	}
	return args
}

// TestCaseMCPFollowUps: A27, A28, A30, A36, A37. A follow-up is checked in full before it
// does anything, and takes nothing of a command.
func TestCaseMCPFollowUps(t *testing.T) {
	h := newMCPHost(t)
	c := stdio(t, h.Server, nil)
	id := c.begin(params{"command": "cat; exit 3", "close_stdin": false}, "")
	var cases []mcpRefused
	for action := range follows {
		for field, value := range map[string]any{
			"command": "ls", "run_in_background": true, "timeout": 5, "timeout_s": 5, "question_ids": []string{"q"}, "pty": true, "tty": true, "env": params{"A": "b"}, "cwd": "/",
		} {
			code := "invalid_arguments"
			if slices.Contains([]string{"run_in_background", "timeout", "question_ids", "pty"}, field) {
				code = "unknown_field"
			}
			cases = append(cases, mcpRefused{"A27_" + action + "_" + field, followUp(action, id, params{field: value}), code, field, field})
		}
		unknown := "process_id: there is no process NOBODY in this session; nothing was resumed or started, and action list tells what there is"
		cases = append(
			cases,
			mcpRefused{"A28_" + action, followUp(action, "NOBODY", nil), "not_found", "process_id", unknown},
			mcpRefused{"A28_" + action + "_missing", followUp(action, "", params{"process_id": nil}), "invalid_arguments", "process_id", "missing"},
			mcpRefused{"A28_" + action + "_pid", followUp(action, "", params{"process_id": 4711}), "invalid_arguments", "process_id", "4711; give text"},
			mcpRefused{"A28_" + action + "_path", followUp(action, "../../etc", nil), "invalid_arguments", "process_id", "is none"},
		)
	}
	cases = append(cases, mcpRefused{"A30_cursor", followUp("read", id, params{"cursor": 0}), "unknown_field", "cursor", "the nearest is offset"})
	for _, bad := range []struct {
		actions, field string
		value          any
		code, says     string
	}{
		{"read write wait terminate", "offset", 999, "cursor_ahead", "offset 999 is ahead of the output, which ends at 0"},
		{"read write wait terminate search wait_for", "offset", -1, "invalid_arguments", "not within"},
		{"read write wait terminate search wait_for", "offset", true, "invalid_arguments", "true; give a whole number"},
		{"read write wait terminate", "offset", 1.5, "invalid_arguments", "no whole number"},
		{"read write wait terminate", "offset", "0", "invalid_arguments", "give a whole number"},
		{"read write wait terminate", "max_bytes", 4095, "invalid_arguments", "4096 to 100000"},
		{"read write wait terminate", "max_bytes", 100_001, "invalid_arguments", "4096 to 100000"},
		{"read write wait terminate", "max_bytes", true, "invalid_arguments", "true; give a whole number"},
		{"read write wait terminate", "view", "screen", "invalid_arguments", "none of safe, text, base64"},
		{"read write wait wait_for", "wait_s", -1, "invalid_arguments", "not within 0 to 600"},
		{"read write wait wait_for", "wait_s", false, "invalid_arguments", "false; give a number of seconds"},
		{"write", "stdin", strings.Repeat("x", 65_537), "invalid_arguments", "at most 65536"},
		{"write", "stdin", "", "invalid_arguments", "close_stdin true"},
		{"write", "close_stdin", 1, "invalid_arguments", "give true or false"},
		{"signal", "signal", "NOPE", "invalid_arguments", "INT"},
		{"terminate", "mode", "banish", "invalid_arguments", "kill"},
		{"terminate", "grace_s", "now", "invalid_arguments", "give a number of seconds"},
		{"resize", "rows", 0, "invalid_arguments", "1 to 65535"},
		{"resize", "cols", 65_536, "invalid_arguments", "1 to 65535"},
		{"search", "pattern", "(", "invalid_arguments", "literal"},
	} {
		for action := range strings.FieldsSeq(bad.actions) {
			cases = append(cases, mcpRefused{fmt.Sprintf("A37_%s_%s_%.20v", action, bad.field, bad.value), followUp(action, id, params{bad.field: bad.value}), bad.code, bad.field, bad.says})
		}
	}
	refuses(t, c, cases)
	// None of them wrote, ended or changed anything.
	c.does("status", id).is(t, "[still running: process P; wait, wait_for or read follow it, terminate ends it]\n[stdin is open, 0 bytes written so far]",
		params{"state": "running", "total_bytes": 0, "stdin_open": true, "cancel_requested_by": nil})
	if r := c.call(followUp("resize", id, nil)); r.code() != "pty_unavailable" {
		t.Errorf("%s", r.text)
	}
	c.does("write", id, "stdin", "one\n", "close_stdin", true, "wait_s", 0)
	c.does("wait", id, "offset", 0).is(t, "one\n[process P: exit code 3]", params{"exit_code": 3, "output": "one\n"})
	if r := c.call(followUp("write", id, nil)); r.code() != "stdin_closed" || !strings.Contains(r.text, "start it with close_stdin false or tty true") {
		t.Errorf("%s", r.text)
	}
	c.does("write", id, "close_stdin", true).is(t, "", params{"error": nil, "exit_code": 3}) // again is harmless (P29)
	c.does("signal", id, "signal", "TERM").is(t, "[SIGTERM: the command of P has ended]\n[process P: exit code 3]\n[4 bytes of output: action read, process_id P, offset 0]", params{"exit_code": 3})
}

// TestCaseMCPPages: A30, A31, A33, A45 to A47. Reads take nothing away, and what is gone is
// said.
func TestCaseMCPPages(t *testing.T) {
	h := newMCPHost(t)
	lives(t, h.Server, map[string]func(*testing.T, *mcpClient){
		"Out37CharacterOverTwoReads": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": `for b in e8 aa 9e f0 9f a6 80 0a; do printf "\x$b"; sleep 0.05; done`}, "")
			all, offset := "", 0.0
			for {
				r := c.does("read", id, "offset", offset, "wait_s", 10)
				if all += r.str("output"); !utf8.ValidString(r.str("output")) || strings.Contains(r.text, "\uFFFD") {
					t.Errorf("%q", r.text)
				}
				if offset = r.num("next_offset"); strings.Contains(r.text, "end of output") {
					break
				}
			}
			if all != "語\U0001f980\n" {
				t.Errorf("%q", all)
			}
		},
		"Out47NewOutputOnce": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "for i in 1 2 3 4; do echo L$i; sleep 0.15; done"}, "")
			var pages []result
			all, offset := "", 0.0
			for {
				r := c.does("read", id, "offset", offset, "wait_s", 0.1)
				pages = append(pages, r)
				all += r.str("output")
				if offset = r.num("next_offset"); r.num("exit_code") == 0 {
					break
				}
			}
			if all != "L1\nL2\nL3\nL4\n" {
				t.Errorf("%q", all)
			}
			for _, old := range pages { // A45: not consumed
				if r := c.does("read", id, "offset", old.num("offset")); !strings.HasPrefix(r.str("output"), old.str("output")) {
					t.Errorf("%q, then %q", old.str("output"), r.str("output"))
				}
			}
			c.does("read", id).is(t, "L1\nL2\nL3\nL4\n[end of output; completed, exit code 0]", params{"offset": 0, "next_offset": 12})
		},
		"Out51LongAfterTheEnd": func(t *testing.T, c *mcpClient) {
			id := c.ok(run("echo quick; exit 2")).str("process_id")
			for range 40 {
				c.ok(run("true"))
			}
			c.does("read", id, "wait_s", 30).is(t, "quick\n[end of output; failed, exit code 2]", params{"output": "quick\n", "exit_code": 2})
			c.does("search", id, "pattern", "qu").is(t, "0:stdout:quick\n[1 match in 6 bytes]", params{"exit_code": 2})
			c.does("status", id).is(t, "[process P: exit code 2]\n[6 bytes of output: action read, process_id P, offset 0]", params{"state": "failed", "reason": "exit"})
		},
		"Out53EllipsisIsNoPrompt": func(t *testing.T, c *mcpClient) {
			for _, prompt := range []string{"collecting ... ", "Password: ", "> ", "go on? [y/N] "} {
				id := c.begin(params{"command": "printf '%s' '" + prompt + "'; sleep 0.5; echo done"}, "")
				c.does("read", id, "wait_s", 30).is(t, prompt+"\n[still running; later output: action read, process_id P, offset "+fmt.Sprint(len(prompt))+"]", params{"state": "running", "exit_code": nil})
				c.does("wait", id).is(t, "done\n[process P: exit code 0]", params{"exit_code": 0})
			}
		},
		"P29WaitsShowWhatIsNew": func(t *testing.T, c *mcpClient) {
			id := c.begin(params{"command": "cat", "close_stdin": false}, "")
			c.does("write", id, "stdin", "one\n", "wait_s", 30).is(t, "one\n[stdin of P: 4 bytes written in all, open]\n[still running; later output: action read, process_id P, offset 4]", params{"output": "one\n", "next_offset": 4, "total_bytes": 4})
			c.does("write", id, "stdin", "two\n", "wait_s", 30).is(t, "", params{"output": "two\n", "offset": 4})
			c.does("write", id, "stdin", "three\n", "wait_s", 30, "offset", 8).is(t, "", params{"output": "three\n", "offset": 8})
			c.does("write", id, "close_stdin", true, "wait_s", 0)
			c.does("wait", id, "offset", 4).is(t, "two\nthree\n[process P: exit code 0]", params{"offset": 4})
		},
		"P29NobodyReads": func(t *testing.T, c *mcpClient) {
			notShort(t)
			id := c.begin(params{"command": "sleep 300", "close_stdin": false}, "")
			full := strings.Repeat("x", 65_536)
			c.does("write", id, "stdin", full, "wait_s", 0)
			r := c.call(followUp("write", id, params{"stdin": full, "wait_s": 0}))
			if !r.failed || r.code() != "input_backpressure" || !strings.HasPrefix(r.text, "[input_backpressure: ") {
				t.Errorf("%s", r.text)
			}
			c.does("status", id).is(t, "", params{"state": "running", "stdin_open": true})
		},
		"A40StreamsKeepTheirNames": func(t *testing.T, c *mcpClient) {
			id := c.ok(run("echo a; sleep 0.05; echo b >&2; sleep 0.05; echo c")).str("process_id")
			c.does("read", id, "stream", "stderr").is(t, "", params{"output": "b\n"})
			c.does("read", id, "stream", "stdout").is(t, "", params{"output": "a\nc\n"})
			c.does("read", id).is(t, "", params{"output": "a\nb\nc\n"})
		},
		"A47Gap": func(t *testing.T, c *mcpClient) {
			r := c.ok(run("head -c 80000000 /dev/zero | tr '\\0' x; echo; echo LAST"))
			id, gone := r.str("process_id"), r.num("dropped_bytes")
			if gone <= 0 || r.num("total_bytes") != 80_000_006 || !strings.HasSuffix(r.text, fmt.Sprintf("\nLAST\n[no longer kept: %.0f bytes of the output]", gone)) {
				t.Fatalf("%v gone: %q", gone, r.text[len(r.text)-100:])
			}
			p := c.does("read", id, "offset", 40_000_000)
			if !strings.HasPrefix(p.text, fmt.Sprintf("[%.0f bytes missing here: budget]\n", p.num("gap_bytes"))) || p.num("offset") <= 40_000_000 || p.num("gap_bytes") <= 0 {
				t.Errorf("%v, %.100q", p.num("gap_bytes"), p.text)
			}
			s := c.does("search", id, "pattern", "^LAST$")
			if s.num("gap_bytes") != gone || !strings.Contains(s.text, "[not searched: ") || !strings.Contains(s.text, ":stdout:LAST") {
				t.Errorf("%s", s.text)
			}
		},
		"Pty71LineThatATerminalWouldCut": func(t *testing.T, c *mcpClient) {
			need(t, "pty")
			id := c.begin(params{"command": "stty -echo; echo ready; wc -c", "tty": true}, "^ready")
			if r := c.call(followUp("write", id, params{"stdin": strings.Repeat("y", 5000) + "\n"})); r.code() != "invalid_arguments" || r.field() != "stdin" || !strings.Contains(r.text, "4095 bytes") {
				t.Errorf("%s", r.text)
			}
			c.does("write", id, "stdin", strings.Repeat("y", 4000)+"\n", "close_stdin", true, "wait_s", 0)
			c.does("wait", id, "wait_s", 30, "offset", len("ready\r\n")).is(t, "4001\n[process P: exit code 0]", nil)
		},
		"Pty75Resize": func(t *testing.T, c *mcpClient) {
			need(t, "pty")
			id := c.begin(params{"command": "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done", "tty": true, "rows": 24, "cols": 80}, "^ready")
			c.does("resize", id, "rows", 50, "cols", 200).is(t, "[the terminal of P has 50 rows and 200 columns]", nil)
			c.does("wait", id, "wait_s", 30).is(t, "50 200\n[process P: exit code 0]", nil)
		},
	})
}

// TestCaseMCPLists: A35, M14, M22, M23, M31. Who lost its context finds everything by the
// list, sees nothing of others, and never a command.
func TestCaseMCPLists(t *testing.T) {
	h := newMCPHost(t)
	c, other := stdio(t, h.Server, nil), stdio(t, h.Server, nil)
	c.ok(params{"action": "list"}).is(t, "(no processes)", nil)
	const secret = "hunter2-of-the-command"
	ended := c.begin(params{"command": "echo out; echo '" + secret + "' >/dev/null; exit 4", "description": "the build"}, "")
	h.ended(t, ended)
	named := c.begin(params{"command": "sleep 300 # " + secret, "description": "a server\n[exit code 0]"}, "")
	plain := c.begin(params{"command": "TOKEN=" + secret + " sleep 301"}, "")
	theirs := other.begin(params{"command": "sleep 302"}, "")
	results := []result{c.ok(params{"action": "list"}), c.ok(run("true # " + secret)), c.does("status", plain), c.does("terminate", plain)}
	list := results[0].text
	for _, want := range []string{ended + "  failed  ", "exit code 4  the build", named + "  running  ", "  a server [exit code 0]\n", plain + "  running  ", "  sleep\n"} {
		if !strings.Contains(list+"\n", want) {
			t.Errorf("%q is not in\n%s", want, list)
		}
	}
	if lines := strings.Split(list, "\n"); len(lines) != 3 || strings.Contains(list, theirs) || !strings.HasPrefix(lines[2], ended) {
		t.Errorf("%s", list)
	}
	if !strings.Contains(results[1].text, "[also running: "+named+", ") {
		t.Errorf("%s", results[1].text)
	}
	record, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "limpet://process/" + plain + "/record"})
	if err != nil || !strings.Contains(record.Contents[0].Text, `"cancelled"`) {
		t.Fatalf("%+v, %v", record, err)
	}
	for _, r := range results {
		if strings.Contains(r.text+fmt.Sprint(r.data)+record.Contents[0].Text, secret) {
			t.Errorf("a command is repeated in %s: %v", r.text, r.data)
		}
	}
	c.does("read", ended).is(t, "out\n[end of output; failed, exit code 4]", nil) // by the id of the list

	// P28: the errors of one are not those of the call.
	within(t, 2*soon, func() {
		r := c.ok(params{"action": "wait_for", "process_ids": []string{named, ended}, "for": "end", "mode": "any", "wait_s": 30})
		if each := r.data["results"].([]any); len(each) != 2 || r.data["met"] != true || !strings.Contains(fmt.Sprint(each[1]), "exit_code:4") {
			t.Errorf("%v", r.data)
		}
	})
	r := c.ok(params{"action": "wait_for", "process_ids": []string{ended, theirs, named}, "for": "end", "mode": "all", "wait_s": 0.5})
	each := r.data["results"].([]any)
	if len(each) != 3 || r.data["met"] != false || !strings.Contains(fmt.Sprint(each[1]), "not_found") || !strings.HasSuffix(r.text, "[not met within 0.5 s; nothing was cancelled]") {
		t.Errorf("%v: %s", r.data, r.text)
	}
	refuses(t, c, []mcpRefused{
		{"P28Twice", params{"action": "wait_for", "process_ids": []string{named, named}}, "invalid_arguments", "process_ids[1]", "twice"},
		{"P28Empty", params{"action": "wait_for", "process_ids": []string{}}, "invalid_arguments", "process_ids", "empty"},
		{"P28Both", params{"action": "wait_for", "process_ids": []string{named}, "process_id": named}, "invalid_arguments", "process_ids", "one of both"},
	})
}
