package chaos

import (
	"fmt"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestPTY: a terminal is one, and its end is no error.
func TestPTY(t *testing.T) {
	need(t, "pty")
	l := start(t)
	tty := func(text string) wire.Command { return wire.Command{Text: text, TTY: &wire.WindowSize{}} }

	// PTY 69
	t.Run("the end of a terminal loses nothing", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for _, tt := range []struct{ text, want string }{
			{"printf bye", "bye"},
			{"exec printf bye", "bye"},
			{"printf bye >&2", "bye"},
			{"printf bye > /dev/tty", "bye"},
			{"true", ""},
			{"seq 1 20000", strings.ReplaceAll(string(lines(20_000)), "\n", "\r\n")},
			{"head -c 300000 /dev/zero | tr '\\0' x", strings.Repeat("x", 300_000)},
			{"printf by; exec 0<&- 1<&- 2<&-; sleep 0.2", "by"},
		} {
			for range 10 {
				res := c.runs(tty(tt.text))
				ends(t, &res.Receipt, wire.StateCompleted, wire.ReasonExit, 0)
				if all, _, errs := c.output(res.Receipt.Process); all != tt.want || errs != "" {
					t.Errorf("%q: %d bytes, want %d", tt.text, len(all), len(tt.want))
				}
				if o := res.Receipt.Output; o.Error != "" || !o.Complete {
					t.Errorf("%q: %+v", tt.text, o)
				}
			}
		}
	})

	// PTY 71
	t.Run("a line longer than a terminal takes is not cut in silence", func(t *testing.T) {
		t.Parallel()
		for _, n := range []int{100, 4095, 4096, 5000, 70_000} {
			c := call(t, l)
			id := c.starts(tty("stty -echo; echo ready; wc -c"))
			c.shows(id, "ready")
			var refused error
			for data := strings.Repeat("y", n) + "\n"; len(data) > 0 && refused == nil; {
				part := data[:min(len(data), wire.MaxInputBytes)]
				data = data[len(part):]
				_, refused = c.c.Write(t.Context(), wire.Write{ProcessRef: ref(id), Text: part})
			}
			if _, err := c.c.CloseStdin(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			r := c.end(id, soon)
			all, _, _ := c.output(id)
			count := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(all), "ready"))
			told := refused != nil || len(r.Notes) > 0
			if count != fmt.Sprint(n+1) && !told {
				t.Errorf("%d bytes and a newline: wc saw %s, and nothing was said", n, count)
			}
			if n < 4095 && (told || count != fmt.Sprint(n+1)) {
				t.Errorf("a short line: %s, %v, %q", count, refused, r.Notes)
			}
		}
	})

	// PTY 73
	t.Run("line ends of a terminal", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		res := c.runs(tty(`printf 'a\nb\n'; printf 'c\r\n'`))
		if res.Stdout.Text != "a\nb\nc\n" {
			t.Errorf("text %q", res.Stdout.Text)
		}
		if all, _, _ := c.output(res.Receipt.Process); all != "a\r\nb\r\nc\r\r\n" {
			t.Errorf("raw %q", all)
		}
	})

	// PTY 75
	t.Run("a new size is seen, and nothing goes stale", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		// bash asks the terminal itself (checkwinsize) and so knows the new size; sh does
		// not, and then the environment must not say an old one.
		for shell, columns := range map[string]string{"bash": "200 50", "sh": "unset unset"} {
			id := c.starts(wire.Command{
				Shell: shell, TTY: &wire.WindowSize{Rows: 24, Cols: 80},
				Text: "trap 'stty size; echo ${COLUMNS:-unset} ${LINES:-unset}; exit' WINCH; stty size; env | grep -c '^\\(COLUMNS\\|LINES\\)='; echo ready; while :; do sleep 0.1; done",
			})
			c.shows(id, "ready")
			r, err := c.c.Resize(t.Context(), id, wire.WindowSize{Rows: 50, Cols: 200})
			if err != nil || *r.TTY != (wire.WindowSize{Rows: 50, Cols: 200}) {
				t.Fatalf("%v, %v", r, err)
			}
			ends(t, c.end(id, soon), wire.StateCompleted, wire.ReasonExit, 0)
			all, _, _ := c.output(id)
			if all = strings.ReplaceAll(all, "\r", ""); all != "24 80\n0\nready\n50 200\n"+columns+"\n" {
				t.Errorf("%s: %q", shell, all)
			}
		}
		res := c.runs(tty("stty size"))
		if res.Stdout.Text != "24 80\n" {
			t.Errorf("the size by default: %q", res.Stdout.Text)
		}
	})

	// PTY 77
	t.Run("control characters are signals", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			text, key, signal string
			exit              int
		}{
			{"echo rea''dy; sleep 100", "\x03", "INT", 130},
			{"echo rea''dy; exec sleep 100", "\x03", "INT", 130},
			{"echo rea''dy; exec sleep 100", "\x1c", "QUIT", 131},
			{"trap 'exit 4' INT; echo rea''dy; while :; do sleep 0.1; done", "\x03", "", 4},
			{"echo rea''dy; exec cat", "\x04", "", 0},
			{"stty -echo; echo rea''dy; read x; exit 6", "\n", "", 6},
		} {
			c := call(t, l)
			id := c.starts(tty(tt.text))
			c.shows(id, "ready")
			if _, err := c.c.Write(t.Context(), wire.Write{ProcessRef: ref(id), Text: tt.key}); err != nil {
				t.Fatal(err)
			}
			r := c.end(id, soon)
			if r.ExitCode == nil || *r.ExitCode != tt.exit || r.Signal != tt.signal {
				t.Errorf("%q after %q: %s", tt.key, tt.text, show(r))
			}
			if left := tagged(id); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	})

	// PTY 79
	t.Run("without a terminal there is no job control and no noise", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for _, text := range []string{"sleep 0.3 & wait; echo done", "(sleep 0.1 &) ; sleep 0.3; echo done", "sleep 100 & kill -9 $!; wait $! 2>/dev/null; echo done", "true | sleep 0.1 | true & wait; echo done"} {
			res := c.run(text)
			if res.Stdout.Text != "done\n" || res.Stderr.TotalBytes != 0 {
				t.Errorf("%q: %q, %q", text, res.Stdout.Text, res.Stderr.Text)
			}
		}
		if res := c.run("tty; echo $-"); !strings.HasPrefix(res.Stdout.Text, "not a tty\n") || strings.ContainsAny(strings.TrimPrefix(res.Stdout.Text, "not a tty\n"), "im") {
			t.Errorf("%q", res.Stdout.Text)
		}
	})
}

func lines(n int) []byte {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return []byte(b.String())
}
