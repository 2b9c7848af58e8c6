package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/limpet-sh/limpet/app"
)

// patience of a script with what has to happen soon.
const patience = 20 * time.Second

// TestScripts runs testdata/script: what a person types, and what they see. Each script
// has a host of its own in $LIMPET_STATE. Beside the commands of testscript there are
//
//	exits CODE CMD...       CMD ends with this exit code (a program; signals go to CMD)
//	json [PATH...]          stdin is JSON; print what is at these paths, one a line
//	upped                   wait until limpet up serves
//	let NAME [REGEXP]       set NAME to the last stdout, or to what the group in it matches
//	until REGEXP CMD...     repeat CMD until its stdout matches
//	kill9 part              kill -9 of "up", "worker" or "keeper"
//	gone PID|part           wait until a process is no more
//	changed part PID        wait until a part has another pid
//	words NAME BYTE COUNT   set NAME to COUNT times BYTE
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                filepath.Join("testdata", "script"),
		RequireUniqueNames: true,
		UpdateScripts:      os.Getenv("UPDATE_SCRIPTS") != "",
		Setup:              setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"upped": upped, "let": let, "until": until, "kill9": kill9, "gone": gone,
			"changed": changed, "words": words,
		},
	})
}

func required(word string) bool {
	return slices.Contains(strings.Split(os.Getenv("LIMPET_REQUIRE"), ","), word)
}

func setup(e *testscript.Env) error {
	state := filepath.Join(e.WorkDir, "state")
	e.Setenv("LIMPET_STATE", state)
	e.Setenv("HOME", e.WorkDir)
	e.Setenv("LANG", "C.UTF-8")
	e.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // a second for each command otherwise
	e.Defer(func() { killParts(state) })                         // a script that failed may leave them
	return nil
}

// killParts ends what a test that failed left running in a state directory.
func killParts(state string) {
	for _, part := range []string{"up", "worker", "keeper"} {
		if pid := partPID(state, part); pid > 0 && alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// partPID of what is up in a state directory; 0 where it is not.
func partPID(state, part string) int {
	if part == "up" {
		d, err := app.Discover(app.State(state))
		if err != nil {
			return 0
		}
		return d.PID
	}
	b, err := os.ReadFile(filepath.Join(state, part+".pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// alive is false for a zombie too.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// eventually fails the script when f does not come true.
func eventually(ts *testscript.TestScript, what string, f func() bool) {
	for end := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func usage(ts *testscript.TestScript, bad bool, text string) {
	if bad {
		ts.Fatalf("usage: %s", text)
	}
}

func upped(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) > 0, "upped")
	eventually(ts, "up", func() bool {
		return partPID(ts.Getenv("LIMPET_STATE"), "up") > 0 && ts.Exec("limpet", "ps") == nil
	})
}

func let(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 1 || len(args) > 2, "let NAME [REGEXP]")
	value := strings.TrimSpace(ts.ReadFile("stdout"))
	if len(args) == 2 {
		re, err := regexp.Compile(args[1])
		ts.Check(err)
		m := re.FindStringSubmatch(value)
		if len(m) != 2 {
			ts.Fatalf("%q with one group does not match %q", args[1], value)
		}
		value = m[1]
	}
	ts.Setenv(args[0], value)
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2, "until REGEXP CMD...")
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	eventually(ts, args[0], func() bool {
		_ = ts.Exec(args[1], args[2:]...)
		return re.MatchString(ts.ReadFile("stdout"))
	})
}

func kill9(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "kill9 up|worker|keeper")
	pid := partPID(ts.Getenv("LIMPET_STATE"), args[0])
	if pid <= 0 {
		ts.Fatalf("no %s is up", args[0])
	}
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
	ts.Logf("killed %s %d", args[0], pid)
}

func gone(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) != 1, "[!] gone PID|part")
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		pid = partPID(ts.Getenv("LIMPET_STATE"), args[0])
	}
	if neg {
		if !alive(pid) {
			ts.Fatalf("process %d is gone", pid)
		}
		return
	}
	eventually(ts, "end of "+args[0], func() bool { return !alive(pid) })
}

func changed(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "changed part PID")
	old, err := strconv.Atoi(args[1])
	ts.Check(err)
	eventually(ts, "a new "+args[0], func() bool {
		pid := partPID(ts.Getenv("LIMPET_STATE"), args[0])
		return pid > 0 && pid != old && alive(pid)
	})
}

func words(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 3, "words NAME BYTE COUNT")
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Setenv(args[0], strings.Repeat(args[1], n))
}

// exits runs a command, hands it our signals, and complains of another exit code.
func exits() {
	want, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "usage: exits CODE CMD...")
		os.Exit(2)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	go func() { // ends with this program
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		fmt.Fprintf(os.Stderr, "exit code %d, not %d\n", got, want)
		os.Exit(1)
	}
}

// checkJSON reads JSON values until the end of stdin and prints what is at the given
// paths ("receipt.exit_code", "processes.0.state") of each, one a line.
func checkJSON() {
	d := json.NewDecoder(os.Stdin)
	d.UseNumber()
	seen := 0
	for {
		var v any
		err := d.Decode(&v)
		if errors.Is(err, io.EOF) && seen > 0 {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "not JSON:", err)
			os.Exit(1)
		}
		seen++
		for _, path := range os.Args[1:] {
			got, err := at(v, strings.Split(path, "."))
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
				os.Exit(1)
			}
			fmt.Println(got)
		}
	}
}

func at(v any, path []string) (any, error) {
	for _, key := range path {
		switch t := v.(type) {
		case map[string]any:
			next, ok := t[key]
			if !ok {
				return nil, fmt.Errorf("there is no %q", key)
			}
			v = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(t) {
				return nil, fmt.Errorf("there is no element %q of %d", key, len(t))
			}
			v = t[i]
		default:
			return nil, fmt.Errorf("%q is asked of %v", key, v)
		}
	}
	return v, nil
}
