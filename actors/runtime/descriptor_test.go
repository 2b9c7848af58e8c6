package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func input(number int, data string) wire.Descriptor {
	return wire.Descriptor{Number: number, Input: []byte(data)}
}

func output(number int) wire.Descriptor { return wire.Descriptor{Number: number, Output: true} }

// crowd makes sure that our own descriptors are where the child's will be.
func crowd(t *testing.T) {
	t.Helper()
	for range 80 {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
}

func TestDescriptors(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		crowd(t)
		s := bash(t, `cat <&3; cat /dev/fd/7; cat /dev/fd/7; cat <&7
			echo five >&5; echo last >/dev/fd/64; echo six >&5
			{ echo no >&3; } 2>/dev/null && echo "an input was written to"
			{ : >/dev/fd/3; } 2>/dev/null && echo "an input was cut"
			cat <&3; echo "end $?"`)
		// The last has what a pipe holds at most.
		large := strings.Repeat("0123456789abcdef", wire.MaxInputBytes/16)
		s.Descriptors = []wire.Descriptor{output(64), input(3, "three\n"), output(5), input(7, large)}
		r := start(t, f, s)
		if out := r.text(); out != "three\n"+large+large+large+"end 0\n" {
			t.Errorf("read %d bytes: %.40q … %q, error output %q", len(out), out, out[max(0, len(out)-40):], r.errOut.String())
		}
		if a, b := r.extra[5].String(), r.extra[64].String(); a != "five\nsix\n" || b != "last\n" {
			t.Errorf("got %q on 5 and %q on 64", a, b)
		}
	})
}

func TestAllDescriptors(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		crowd(t)
		s := bash(t, "for ((n = 3; n <= 64; n++)); do if ((n % 2)); then cat <&$n >&$((n + 1)); fi; done; echo state >&65")
		for n := wire.MinDescriptor; n <= wire.MaxDescriptor; n++ {
			if n%2 == 1 {
				s.Descriptors = append(s.Descriptors, input(n, fmt.Sprint("from ", n)))
			} else {
				s.Descriptors = append(s.Descriptors, output(n))
			}
		}
		s.State = true
		r := start(t, f, s)
		if out := r.text() + r.errOut.String(); out != "" {
			t.Error(out)
		}
		for n := wire.MinDescriptor + 1; n <= wire.MaxDescriptor; n += 2 {
			if got := r.extra[n].String(); got != fmt.Sprint("from ", n-1) {
				t.Errorf("got %q on %d", got, n)
			}
		}
		r.end()
		if b, err := r.State(); string(b) != "state\n" || err != nil {
			t.Errorf("state %q, %v", b, err)
		}
	})
}

// TestOnlyWhatWasAskedFor looks by stat, which opens nothing itself.
func TestOnlyWhatWasAskedFor(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		crowd(t)
		for want, change := range map[string]func(*Spec){
			"0 1 2":         func(*Spec) {},
			"0 1 2 65":      func(s *Spec) { s.State = true },
			"0 1 2 3 17":    func(s *Spec) { s.Descriptors = []wire.Descriptor{output(17), input(3, "x")} },
			"0 1 2 64":      func(s *Spec) { s.Descriptors = []wire.Descriptor{output(64)} },
			"0 1 2 4 64 65": func(s *Spec) { s.State, s.Descriptors = true, []wire.Descriptor{input(4, "x"), output(64)} },
		} {
			s := bash(t, "for n in {0..400}; do [ -e /proc/$$/fd/$n ] && echo $n; done")
			change(&s)
			if got := strings.Join(strings.Fields(start(t, f, s).text()), " "); got != want {
				t.Errorf("the child holds %q, want %q", got, want)
			}
		}
	})
}

// An input can be opened again by whoever may run the child.
func TestInputOfAnotherUser(t *testing.T) {
	need(t, "root", os.Getuid() == 0, "to be another user takes root")
	_, err := exec.LookPath("setpriv")
	need(t, "setpriv", err == nil, fmt.Sprint(err))
	each(t, func(t *testing.T, f *Forker) {
		s := bash(t, "exec setpriv --reuid=65534 --regid=65534 --clear-groups cat /dev/fd/3 -")
		s.Descriptors = []wire.Descriptor{input(3, "for anybody")}
		r := start(t, f, s)
		if out := r.text(); out != "for anybody" {
			t.Errorf("read %q, error output %q", out, r.errOut.String())
		}
	})
}

func TestState(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		full := strings.Repeat("x", MaxState)
		for name, c := range map[string]struct {
			text, want string
			tty        bool
		}{
			"nothing":             {text: "true"},
			"NULs between":        {text: `printf 'A=1\0B=\0.' >&65`, want: "A=1\x00B=\x00."},
			"NULs at the end":     {text: `printf 'A=1\0\0' >&65`, want: "A=1"},
			"two writers":         {text: `echo a >&65; (echo b >&65); sh -c 'echo c' >&65`, want: "a\nb\nc\n"},
			"by its name":         {text: `sh -c 'echo named 1<>/dev/fd/65'`, want: "named\n"},
			"as a terminal's":     {text: "echo t >&65", want: "t\n", tty: true},
			"all there is room":   {text: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >&65", MaxState), want: full},
			"more than that":      {text: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >&65 && echo a >/dev/fd/65", MaxState+1), want: full},
			"after its end":       {text: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >&65; echo more >&65 || echo refused", MaxState), want: full},
			"it cannot be cut":    {text: "echo kept >&65; { : >/dev/fd/65; } 2>/dev/null; true", want: "kept\n"},
			"it cannot be longer": {text: "truncate -s 1M /dev/fd/65; echo kept >&65", want: "kept\n"},
			"killed":              {text: "echo half >&65; kill -9 $$", want: "half\n"},
		} {
			s := bash(t, c.text)
			s.State = true
			if c.tty {
				s.TTY = &Size{}
			}
			r := start(t, f, s)
			r.end()
			got, err := r.State()
			if string(got) != c.want || err != nil || (len(got) == 0) != (got == nil) {
				t.Errorf("%s: %d bytes %.60q, %v", name, len(got), got, err)
			}
			if again, err := r.State(); again != nil || err != nil {
				t.Errorf("%s: the second time %q, %v", name, again, err)
			}
			if name == "after its end" && !strings.Contains(r.text(), "refused") {
				t.Errorf("a write beyond the end did not fail: %q", r.errOut.String())
			}
		}
	})
}

// What lives on with the state file holds no stream open.
func TestStateOfLeftovers(t *testing.T) {
	each(t, func(t *testing.T, f *Forker) {
		s := bash(t, "sleep 60 >/dev/null 2>&1 & echo done >&65")
		s.State = true
		r := start(t, f, s)
		ended := make(chan string, 1)
		go func() { ended <- r.text() }() // ends with the streams, at the latest in the clean-up
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("a leftover with the state file holds the streams open")
		}
		r.end()
		if b, err := r.State(); string(b) != "done\n" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
	})
}

func TestBadDescriptors(t *testing.T) {
	f := forker(t, "scan")
	for name, c := range map[string]struct {
		spec  Spec
		field string
	}{
		"of ours":         {Spec{Descriptors: []wire.Descriptor{output(2)}}, "descriptors[0].number"},
		"the state's":     {Spec{Descriptors: []wire.Descriptor{output(StateDescriptor)}}, "descriptors[0].number"},
		"twice":           {Spec{Descriptors: []wire.Descriptor{output(3), input(3, "x")}}, "descriptors[1].number"},
		"neither":         {Spec{Descriptors: []wire.Descriptor{{Number: 3}}}, "descriptors[0]"},
		"both":            {Spec{Descriptors: []wire.Descriptor{{Number: 3, Input: []byte("x"), Output: true}}}, "descriptors[0]"},
		"large":           {Spec{Descriptors: []wire.Descriptor{{Number: 3, Input: make([]byte, wire.MaxInputBytes+1)}}}, "descriptors[0].input"},
		"with a terminal": {Spec{TTY: &Size{}, Descriptors: []wire.Descriptor{output(3)}}, "descriptors"},
	} {
		s := self(t, "streams")
		s.TTY, s.Descriptors = c.spec.TTY, c.spec.Descriptors
		child, err := f.Start(s)
		if e := wire.AsError(err); child != nil || err == nil || e.Code != wire.CodeInvalidArguments || e.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}
