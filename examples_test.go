package limpet_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// need skips a test for want of something, loudly, and fails it where LIMPET_REQUIRE
// names that.
func need(t *testing.T, word string, have bool, why string) {
	t.Helper()
	switch {
	case have:
	case slices.Contains(strings.Split(os.Getenv("LIMPET_REQUIRE"), ","), word):
		t.Fatalf("LIMPET_REQUIRE demands %s: %s", word, why)
	default:
		t.Skipf("SKIPPED for want of %s: %s", word, why)
	}
}

// build builds the binary of a command and returns its path.
func build(t *testing.T, command string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), command)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./cmd/"+command).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", command, err, out)
	}
	return exe
}

// up runs limpet up in a state directory until the end of the test.
func up(t *testing.T, exe, state string) {
	t.Helper()
	cmd := exec.Command(exe, "up", "--state", state)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("limpet up: %v", err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "limpet is up") {
		t.Fatalf("limpet up says %q: %v", line, err)
	}
}

// The example is what it claims to be, and does what it says against a real limpet.
func TestTheExampleInPython(t *testing.T) {
	const example = "docs/examples/client.py"
	python, err := exec.LookPath("python3")
	need(t, "python3", err == nil, "the example is in Python")
	source, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), "\n"); n > 150 {
		t.Errorf("%s has %d lines; it should be read at a glance: 150", example, n)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:import|from) (\w+)`).FindAllStringSubmatch(string(source), -1) {
		if !slices.Contains([]string{"base64", "json", "os", "socket", "sys", "uuid"}, m[1]) {
			t.Errorf("%s imports %s: nothing but the standard library, and little of that", example, m[1])
		}
	}
	exe := build(t, "limpet")
	// A path longer than the address of a socket takes, as a state directory may have.
	state := filepath.Join(t.TempDir(), strings.Repeat("long-", 25))
	up(t, exe, state)
	out, err := exec.CommandContext(t.Context(), python, "-W", "error", example, state).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", example, err, out)
	}
	const want = `follow one to its end:
  stdout: line 1
  stdout: line 2
  stdout: line 3
  failed, reason exit, exit code 3
write to one:
     1	first
     2	second
stop one:
  cancelled, reason cancel, exit code 143
be refused:
  start: unknown_field, field command.timeoutMs, nearest timeout_ms: `
	// Which of two pipes is read first is open.
	const oops = "\n  stderr: oops"
	if !strings.HasPrefix(strings.Replace(string(out), oops, "", 1), want) {
		t.Errorf("it printed\n%s\nwhich does not begin with\n%s", out, want)
	}
	for _, line := range []string{oops, "\n  status: not_found, field process, ", "\n  write: stdin_closed, field -, "} {
		if !strings.Contains(string(out), line) {
			t.Errorf("it printed\n%s\nwithout%s", out, line)
		}
	}
	// It closed its session: nothing of it is left.
	list, err := exec.CommandContext(t.Context(), exe, "ps", "--state", state).CombinedOutput()
	if err != nil || strings.Contains(string(list), "running") {
		t.Errorf("afterwards there is (%v)\n%s", err, list)
	}
}

// Where nothing is up the example says so, and that it failed.
func TestTheExampleWithNothingUp(t *testing.T) {
	python, err := exec.LookPath("python3")
	need(t, "python3", err == nil, "the example is in Python")
	out, err := exec.CommandContext(t.Context(), python, "docs/examples/client.py", t.TempDir()).CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "client.py: ") || strings.Contains(string(out), "Traceback") {
		t.Errorf("it printed %q: %v", out, err)
	}
}

// The bytes of the page are counted right: who types them gets an answer.
func TestTheBytesOfTheProtocolAreCounted(t *testing.T) {
	_, text, _ := strings.Cut(documents(t)["subjects/PROTOCOL.md"], "C: HPUB ")
	text, _, _ = strings.Cut(text, "\nS: HMSG")
	lines := strings.Split(text, "\nC:")
	if len(lines) != 5 {
		t.Fatalf("the call of the page has %d lines: %q", len(lines), lines)
	}
	head := 0
	for _, line := range lines[1:4] {
		head += len(strings.TrimPrefix(line, " ")) + 2
	}
	want := fmt.Sprintf(" %d %d", head, head+len(strings.TrimPrefix(lines[4], " ")))
	if !strings.HasSuffix(lines[0], want) {
		t.Errorf("the page says %q, not%s", lines[0], want)
	}
}

// Each case of the official suite that may fail has its reason.
func TestTheConformanceListsHaveReasons(t *testing.T) {
	files, err := filepath.Glob(".ci/conformance-*.yml")
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !contains(t, ".ci/conformance", "check "+strings.TrimSuffix(strings.TrimPrefix(file, ".ci/conformance-"), ".yml")) {
			t.Errorf("nothing reads %s", file)
		}
		for _, line := range strings.Split(string(b), "\n")[3:] {
			if line != "" && !regexp.MustCompile(`^  - [a-z0-9-]+:[a-z0-9-]+ # .{10,}$`).MatchString(line) {
				t.Errorf("%s: %q gives no check with its reason", file, line)
			}
		}
	}
	if !contains(t, ".ci/run", ".ci/conformance") {
		t.Error("the gate does not run it")
	}
}
