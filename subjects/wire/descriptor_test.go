package wire

import (
	"errors"
	"strings"
	"testing"
)

func TestStreamNames(t *testing.T) {
	seen := map[string]bool{}
	for s := Stdout; s <= LastStream; s++ {
		got, ok := ParseStream(s.String())
		if got != s || !ok || !s.Valid() || seen[s.String()] {
			t.Errorf("%d is %q is %d, %v", s, s.String(), got, ok)
		}
		seen[s.String()] = true
	}
	for _, name := range []string{"", "stdin", "fd", "fd0", "fd1", "fd2", "fd03", "fd+3", "fd65", "fd3 ", "FD3", "fd99999999999999999999", "unknown"} {
		if s, ok := ParseStream(name); ok {
			t.Errorf("%q is %d", name, s)
		}
	}
	for _, s := range []Stream{0, LastStream + 1, 255} {
		if s.Valid() || s.String() != "unknown" {
			t.Errorf("%d is %q", s, s)
		}
	}
}

func TestDescriptorsOfACommand(t *testing.T) {
	all := make([]Descriptor, 0, MaxDescriptor)
	for n := MinDescriptor; n <= MaxDescriptor; n++ {
		all = append(all, Descriptor{Number: n, Output: true})
	}
	input := []byte("x")
	for name, c := range map[string]struct {
		command    Command
		field, say string
	}{
		"all of them":         {Command{Argv: []string{"ls"}, Descriptors: all}, "", ""},
		"an input":            {Command{Text: "ls", Descriptors: []Descriptor{{Number: 64, Input: make([]byte, MaxInputBytes)}}}, "", ""},
		"login":               {Command{Text: "ls", Login: true}, "", ""},
		"login with argv":     {Command{Argv: []string{"ls"}, Login: true}, "command.login", "without a shell"},
		"capture":             {Command{Text: "ls", CaptureState: true}, "", ""},
		"capture with argv":   {Command{Argv: []string{"ls"}, CaptureState: true}, "command.capture_state", "without a shell"},
		"capture at terminal": {Command{Text: "ls", CaptureState: true, TTY: &WindowSize{}}, "", ""},
		"with a terminal":     {Command{Text: "ls", TTY: &WindowSize{}, Descriptors: all[:1]}, "command.descriptors", "terminal"},
		"one of ours":         {Command{Text: "ls", Descriptors: []Descriptor{{Number: 2, Output: true}}}, "command.descriptors[0].number", "3..64"},
		"the state's":         {Command{Text: "ls", Descriptors: []Descriptor{{Number: 65, Input: input}}}, "command.descriptors[0].number", "3..64"},
		"negative":            {Command{Text: "ls", Descriptors: []Descriptor{{Number: -1, Input: input}}}, "command.descriptors[0].number", "3..64"},
		"twice":               {Command{Text: "ls", Descriptors: []Descriptor{{Number: 4, Input: input}, {Number: 3, Output: true}, {Number: 4, Output: true}}}, "command.descriptors[2].number", "twice"},
		"both":                {Command{Text: "ls", Descriptors: []Descriptor{{Number: 3, Input: input, Output: true}}}, "command.descriptors[0].input", "one of both"},
		"neither":             {Command{Text: "ls", Descriptors: []Descriptor{{Number: 3, Output: true}, {Number: 4, Input: []byte{}}}}, "command.descriptors[1].input", "missing"},
		"large":               {Command{Text: "ls", Descriptors: []Descriptor{{Number: 3, Input: make([]byte, MaxInputBytes+1)}}}, "command.descriptors[0].input", "65,536"},
	} {
		e, _ := errors.AsType[*Error](start(c.command).Validate())
		switch {
		case c.field == "" && e != nil:
			t.Errorf("%s: %v", name, e)
		case c.field != "" && (e == nil || e.Code != CodeInvalidArguments || e.Field != c.field || !strings.Contains(e.Message, c.say)):
			t.Errorf("%s: %v", name, e)
		}
	}
	for _, r := range []Request{&Read{ProcessRef: process, Stream: "fd64"}, &WaitFor{ProcessRef: process, For: "quiet", QuietMS: 1, Stream: "fd3"}, &Search{ProcessRef: process, Pattern: "x", Stream: "fd3"}} {
		if err := r.Validate(); err != nil {
			t.Errorf("%T: %v", r, err)
		}
	}
}

// Every word about a descriptor is in the request hash, and a zero one in none.
func TestDescriptorsCountInTheHash(t *testing.T) {
	seen := map[string]int{}
	for i, c := range []Command{
		{Text: "ls"},
		{Text: "ls", Descriptors: []Descriptor{{Number: 3, Output: true}}},
		{Text: "ls", Descriptors: []Descriptor{{Number: 4, Output: true}}},
		{Text: "ls", Descriptors: []Descriptor{{Number: 3, Input: []byte("a")}}},
		{Text: "ls", Descriptors: []Descriptor{{Number: 3, Input: []byte("b")}}},
		{Text: "ls", Descriptors: []Descriptor{{Number: 3, Output: true}, {Number: 4, Output: true}}},
		{Text: "ls", Descriptors: []Descriptor{{Number: 4, Output: true}, {Number: 3, Output: true}}},
		{Text: "ls", Login: true},
		{Text: "ls", CaptureState: true},
	} {
		h := RequestHash(&c)
		if j, taken := seen[h]; taken {
			t.Errorf("commands %d and %d have one hash", i, j)
		}
		seen[h] = i
	}
	if RequestHash(&Command{Text: "ls", Descriptors: []Descriptor{}}) != RequestHash(&Command{Text: "ls"}) {
		t.Error("no descriptors are not as none")
	}
	if got := string((&Command{Text: "ls", Descriptors: []Descriptor{{Number: 3, Output: true, Input: []byte{}}}}).Canonical()); got != `{"descriptors":[{"number":3,"output":true}],"text":"ls"}` {
		t.Error(got)
	}
}
