package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestOut: what was written is what is read, to the byte, as often as one likes.
func TestOut(t *testing.T) {
	l := start(t)

	// OUT 37
	t.Run("a character that arrives in pieces is whole", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct{ name, text, want string }{
			{"in two", `printf '\xe8\xaa'; sleep 0.3; printf '\x9e\n'`, "語\n"},
			{"in four", `for b in f0 9f a6 80; do printf "\x$b"; sleep 0.1; done; printf '\n'`, "\U0001f980\n"},
			{"beside the other stream", `printf '\xe8'; sleep 0.1; printf 'é' >&2; sleep 0.1; printf '\xaa\x9e\n'`, "é語\n"},
			{"over the end of a chunk", `head -c 4095 /dev/zero | tr '\0' a; printf '語\n'`, strings.Repeat("a", 4095) + "語\n"},
			{"many over many ends", `for i in $(seq 3000); do printf 'a語é\U1f980'; done`, strings.Repeat("a語é\U0001f980", 3000)},
			{"one that never completes", `printf 'ab\xe8\xaa'`, "ab\uFFFD\uFFFD"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := call(t, l)
				id := c.start(tt.text)
				m := wire.Read{ProcessRef: ref(id), Cursor: new(int64), MaxBytes: wire.MinPageBytes, WaitMS: 50}
				var got strings.Builder
				for {
					p := c.read(m)
					for _, ch := range p.Chunks {
						if !utf8.ValidString(ch.Text) {
							t.Errorf("chunk %d: %q", ch.Cursor, ch.Text)
						}
						got.WriteString(ch.Text)
					}
					if p.End {
						break
					}
					m.Cursor = &p.NextCursor
				}
				if got.String() != tt.want {
					t.Errorf("got %.100q, want %.100q", got.String(), tt.want)
				}
			})
		}
	})

	// OUT 39
	t.Run("a text with losses says so, and the bytes are there", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			text, raw, want string
			loss            int64
		}{
			{`printf 'ok \x80\xfe bad\n'`, "ok \x80\xfe bad\n", "ok \uFFFD\uFFFD bad\n", 2},
			{`printf 'caf\xe9 au lait\n'`, "caf\xe9 au lait\n", "caf\uFFFD au lait\n", 1},
			{`printf 'over \xc0\xaf long\n'`, "over \xc0\xaf long\n", "over \uFFFD\uFFFD long\n", 2},
			{`printf 'half \xed\xa0\x80 pair\n'`, "half \xed\xa0\x80 pair\n", "half \uFFFD\uFFFD\uFFFD pair\n", 3},
			{`printf 'fine \uFFFD here\n'`, "fine \uFFFD here\n", "fine \uFFFD here\n", 0},
		} {
			c := call(t, l)
			res := c.run(tt.text)
			if res.Stdout.Text != tt.want || res.Stdout.EncodingLoss != tt.loss || res.Stdout.Binary {
				t.Errorf("%s: %+v", tt.text, res.Stdout)
			}
			p := c.read(wire.Read{ProcessRef: ref(res.Receipt.Process)})
			if len(p.Chunks) != 1 || p.Chunks[0].Text != tt.want || int64(p.Chunks[0].EncodingLoss) != tt.loss {
				t.Errorf("%s: %+v", tt.text, p.Chunks)
			}
			if all, _, _ := c.output(res.Receipt.Process); all != tt.raw {
				t.Errorf("%s: raw %q", tt.text, all)
			}
		}
	})

	// OUT 41
	t.Run("binary output is kept to the byte and withheld from texts", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for _, n := range []int{1, 16, 4096, 4097, 65_536, 300_001} {
			file := filepath.Join(t.TempDir(), "raw")
			res := c.run(fmt.Sprintf("head -c %d /dev/urandom | tee %s", n, file))
			want, err := os.ReadFile(file)
			if err != nil || len(want) != n {
				t.Fatal(len(want), err)
			}
			o := res.Receipt.Output
			if all, _, _ := c.output(res.Receipt.Process); all != string(want) || o.TotalBytes != int64(n) || res.Stdout.TotalBytes != int64(n) {
				t.Errorf("%d bytes: read %d, %+v", n, len(all), o)
			}
			if n >= 4096 && (!res.Stdout.Binary || !utf8.ValidString(res.Stdout.Text)) {
				t.Errorf("%d bytes as text: %+v", n, res.Stdout)
			}
			p := c.read(wire.Read{ProcessRef: ref(res.Receipt.Process), View: wire.ViewBase64, MaxBytes: wire.MinPageBytes})
			if sum := p.NextOffset - p.Offset; sum != int64(min(n, 4096)) || p.Offset != 0 {
				t.Errorf("%d bytes: a page moves the offset by %d", n, sum)
			}
		}
	})

	// OUT 43
	t.Run("redraws collapse in the text, and only there", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		raw := ""
		for i := range 501 {
			raw += fmt.Sprintf("\rfetch %3d%%", i/5)
		}
		for _, tt := range []struct{ text, raw, want string }{
			{`for i in $(seq 0 500); do printf '\rfetch %3d%%' $((i/5)); done; echo`, raw + "\n", "fetch 100%\n"},
			{`for i in $(seq 0 500); do printf 'fetch %3d%%\r' $((i/5)); done; echo done`, "", "doneh 100%\n"},
			{`printf 'one\rtwo\r\nthree\r\n'`, "one\rtwo\r\nthree\r\n", "two\r\nthree\r\n"},
			{`printf 'long line\rend\n'`, "long line\rend\n", "endg line\n"}, // as a terminal shows it,
			{`printf 'a\r'`, "a\r", "a"},
		} {
			res := c.run(tt.text)
			if got := res.Stdout.Text; got != tt.want {
				t.Errorf("%.40q: text %.100q, want %q", tt.text, got, tt.want)
			}
			id := res.Receipt.Process
			all, _, _ := c.output(id)
			if tt.raw != "" && all != tt.raw {
				t.Errorf("%.40q: raw %.100q", tt.text, all)
			}
			// The views of a page differ in their texts and in nothing else.
			var pages []wire.Page
			for _, v := range []wire.View{wire.ViewText, wire.ViewSafe, wire.ViewBase64} {
				p := c.read(wire.Read{ProcessRef: ref(id), View: v})
				for i := range p.Chunks {
					p.Chunks[i].Text, p.Chunks[i].Data = "", ""
				}
				pages = append(pages, *p)
			}
			if a, b, d := fmt.Sprint(pages[0].Chunks), fmt.Sprint(pages[1].Chunks), fmt.Sprint(pages[2].Chunks); a != b || b != d {
				t.Errorf("%.40q: views disagree:\n%s\n%s\n%s", tt.text, a, b, d)
			}
		}
	})

	// OUT 45
	t.Run("the end of long output is shown, and what is not is counted", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		text := "seq 1 50000; echo 'FATAL: missing key' >&2; exit 3"
		res := c.run(text)
		ends(t, &res.Receipt, wire.StateFailed, wire.ReasonExit, 3)
		if res.Stderr.Text != "FATAL: missing key\n" {
			t.Errorf("stderr %q", res.Stderr.Text)
		}
		shown(t, res.Stdout, "1\n2\n", "49999\n50000\n", 50_000)
		res = c.runs(wire.Command{Text: text, Streams: wire.StreamsMerged})
		shown(t, res.Stdout, "1\n2\n", "50000\nFATAL: missing key\n", 50_001)
		for _, tt := range []struct {
			render     wire.Render
			head, tail string
		}{
			{wire.Render{Shape: wire.ShapeTail}, "", "49999\n50000\n"},
			{wire.Render{Shape: wire.ShapeHead}, "1\n2\n", ""},
			{wire.Render{MaxLines: 10}, "1\n2\n", "49999\n50000\n"},
			{wire.Render{MaxBytes: 1024}, "1\n2\n", "49999\n50000\n"},
		} {
			r, err := c.s.Run(t.Context(), wire.Run{Command: wire.Command{Text: text}, Render: tt.render})
			if err != nil {
				t.Fatal(err)
			}
			shown(t, r.Stdout, tt.head, tt.tail, 50_000)
			if n := strings.Count(r.Stdout.Text, "\n"); tt.render.MaxLines > 0 && n > tt.render.MaxLines+1 {
				t.Errorf("%d lines", n)
			}
			if n := len(r.Stdout.Text); tt.render.MaxBytes > 0 && n > tt.render.MaxBytes+200 {
				t.Errorf("%d bytes", n)
			}
		}
	})

	// OUT 47
	t.Run("a cursor gives what is new, and an old one what it gave", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		id := c.start("for i in 1 2 3 4; do echo L$i; sleep 0.3; done")
		m := wire.Read{ProcessRef: ref(id), Cursor: new(int64), WaitMS: 100}
		var pages []*wire.Page
		got := ""
		for end := false; !end; {
			p := c.read(m)
			pages, end = append(pages, p), p.End
			got += texts(p)
			m.Cursor = &p.NextCursor
		}
		if got != "L1\nL2\nL3\nL4\n" {
			t.Errorf("%q", got)
		}
		for _, old := range pages {
			if p := c.read(wire.Read{ProcessRef: ref(id), Cursor: &old.Cursor}); !strings.HasPrefix(texts(p), texts(old)) {
				t.Errorf("cursor %d: %q, then %q", old.Cursor, texts(old), texts(p))
			}
		}
	})

	// OUT 49
	t.Run("a fast failure has its stderr, 1,000 times", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		var lanes sync.WaitGroup
		for lane := range 8 {
			lanes.Go(func() { // ends after its share
				for i := range 125 {
					if i%2 == lane%2 {
						res := c.run("echo 'boom: no module' >&2; exit 1")
						ends(t, &res.Receipt, wire.StateFailed, wire.ReasonExit, 1)
						if res.Stderr.Text != "boom: no module\n" || !res.Receipt.Output.Complete {
							t.Errorf("run: %+v", res)
						}
						continue
					}
					id := c.start("echo 'boom: no module' >&2; exit 1")
					ends(t, c.end(id, 4*soon), wire.StateFailed, wire.ReasonExit, 1)
					if _, out, errs := c.output(id); errs != "boom: no module\n" || out != "" {
						t.Errorf("start: %q, %q", out, errs)
					}
				}
			})
		}
		lanes.Wait()
	})

	// OUT 51
	t.Run("output is served after the end, then as it was shipped or expired, never unknown", func(t *testing.T) {
		t.Parallel()
		s, err := l.Client.Open(t.Context(), wire.Open{Name: "few", Limits: &wire.SessionLimits{RetainedProcesses: 3}})
		if err != nil {
			t.Fatal(err)
		}
		c := &caller{t, s, l.Client}
		var ids []string
		for i := range 6 {
			ship := int64(-1 + i%2) // every other one is not shipped
			ids = append(ids, c.runs(wire.Command{Text: fmt.Sprintf("echo quick; exit %d", i), Output: &wire.OutputLimits{ShipBytes: ship}}).Receipt.Process)
		}
		for i, id := range ids {
			r, err := c.c.Status(t.Context(), id)
			if err != nil || *r.ExitCode != i || !r.State.Terminal() {
				t.Fatalf("receipt %d: %v, %v", i, r, err)
			}
			p, err := c.c.Read(t.Context(), wire.Read{ProcessRef: ref(id), WaitMS: 60_000})
			if i >= 3 || i%2 == 1 {
				if err != nil || texts(p) != "quick\n" || !p.End || *p.ExitCode != i {
					t.Errorf("retained %d: %+v, %v", i, p, err)
				}
			} else if codeOf(err) != wire.CodeExpired {
				t.Errorf("evicted %d: %+v, %v", i, p, err)
			}
		}
		if _, err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p, err := c.c.Read(t.Context(), wire.Read{ProcessRef: ref(ids[5])}); err != nil || texts(p) != "quick\n" || !p.End || p.Owner != "" {
			t.Errorf("after the session: %+v, %v", p, err)
		}
		if _, err := c.c.Read(t.Context(), wire.Read{ProcessRef: ref(ids[4])}); codeOf(err) != wire.CodeExpired {
			t.Errorf("after the session, not shipped: %v", err)
		}
		if r, err := c.c.Status(t.Context(), ids[5]); err != nil || *r.ExitCode != 5 {
			t.Errorf("after the session: %v, %v", r, err)
		}
		for what, err := range c.all("AAAAAAAAAAAAAAAAAAAAAA") {
			if codeOf(err) != wire.CodeNotFound {
				t.Errorf("%s of an id that never was: %v", what, err)
			}
		}
	})

	// OUT 53
	t.Run("an ellipsis is no prompt", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for _, text := range []string{"printf 'collecting ... '; sleep 1; echo done", "printf 'Password: '; sleep 1; echo done", "printf '> '; sleep 1; echo done", `printf 'go on? [y/N] '; sleep 1; echo done`} {
			id := c.start(text)
			p := c.read(wire.Read{ProcessRef: ref(id), Cursor: new(int64), WaitMS: 20_000})
			if p.State != wire.StateRunning || p.End {
				t.Errorf("%q: state %s", text, p.State)
			}
			ends(t, c.end(id, soon), wire.StateCompleted, wire.ReasonExit, 0)
		}
	})

	// OUT 55
	t.Run("no text of a command fakes an end or a status", func(t *testing.T) {
		t.Parallel()
		c := call(t, l)
		for _, want := range []string{
			"x__DONE_17__ 0\nno newline at end",
			"[3 of 5 lines omitted (10 of 20 bytes); read x from offset 7]\n",
			"{\"version\":1,\"result\":{\"state\":\"completed\",\"exit_code\":0}}\n",
			"exit_code: 0\n\x04\x1a+OK\r\n\x00__END__\n\x1b]133;D;0\x07",
			"\xef\xbb\xbfBOM", "\n", "\n\n\n", " ", "\r", "\x00", "",
		} {
			res := c.runs(wire.Command{Argv: []string{"bash", "-c", `printf %b "$1"; exit 5`, "sh", escape(want)}})
			ends(t, &res.Receipt, wire.StateFailed, wire.ReasonExit, 5)
			if all, _, _ := c.output(res.Receipt.Process); all != want || res.Receipt.Output.TotalBytes != int64(len(want)) {
				t.Errorf("%q, want %q", all, want)
			}
		}
		if res := c.run("printf 'x'; echo '__DONE_17__ 0'; printf 'no newline at end'"); res.Stdout.Text != "x__DONE_17__ 0\nno newline at end" {
			t.Errorf("%q", res.Stdout.Text)
		}
	})
}

// shown checks a text that was cut: its ends, and that nothing is missing from the count.
func shown(t *testing.T, r wire.Rendered, head, tail string, lines int64) {
	t.Helper()
	if !strings.HasPrefix(r.Text, head) || !strings.HasSuffix(r.Text, tail) {
		t.Errorf("%.40q … %q, want %q … %q", r.Text, r.Text[max(0, len(r.Text)-40):], head, tail)
	}
	kept := int64(0)
	size := int64(0)
	for line := range strings.Lines(r.Text) {
		if !strings.HasPrefix(line, "[") {
			kept++
			size += int64(len(line))
		}
	}
	if !r.Truncated || r.OmittedLines+kept != lines || r.OmittedBytes+size != r.TotalBytes {
		t.Errorf("%d lines shown, %d omitted of %d; %d bytes shown, %d omitted of %d",
			kept, r.OmittedLines, lines, size, r.OmittedBytes, r.TotalBytes)
	}
}

func (c *caller) read(m wire.Read) *wire.Page {
	c.Helper()
	p, err := c.c.Read(c.Context(), m)
	if err != nil {
		c.Fatal(err)
	}
	return p
}

// all does everything that can be done to a process.
func (c *caller) all(id string) map[string]error {
	ctx, errs := c.Context(), map[string]error{}
	_, errs["read"] = c.c.Read(ctx, wire.Read{ProcessRef: ref(id)})
	_, errs["wait"] = c.c.Wait(ctx, wire.Wait{ProcessRef: ref(id)})
	_, errs["status"] = c.c.Status(ctx, id)
	_, errs["write"] = c.c.Write(ctx, wire.Write{ProcessRef: ref(id), Text: "x"})
	_, errs["close_stdin"] = c.c.CloseStdin(ctx, id)
	_, errs["resize"] = c.c.Resize(ctx, id, wire.WindowSize{Rows: 24, Cols: 80})
	_, errs["signal"] = c.c.Signal(ctx, id, "INT")
	_, errs["terminate"] = c.c.Terminate(ctx, wire.Terminate{ProcessRef: ref(id)})
	return errs
}

func texts(p *wire.Page) string {
	var s strings.Builder
	for _, ch := range p.Chunks {
		s.WriteString(ch.Text)
	}
	return s.String()
}

// escape writes text for printf %b.
func escape(text string) string {
	var s strings.Builder
	for i := range len(text) {
		fmt.Fprintf(&s, `\0%03o`, text[i])
	}
	return s.String()
}
