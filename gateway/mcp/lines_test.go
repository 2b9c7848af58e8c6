package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// buffer is an output that a test reads while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) Close() error { return nil }

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestBadLines sends what is no message between two messages, which both arrive.
func TestBadLines(t *testing.T) {
	const good = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	for _, tt := range []struct {
		name, line string
		id         string
		code       int
	}{
		{"no JSON", `{"jsonrpc":`, "null", jsonrpc.CodeParseError},
		{"words", `hello`, "null", jsonrpc.CodeParseError},
		{"another version", `{"jsonrpc":"1.0","id":3,"method":"x"}`, "3", jsonrpc.CodeInvalidRequest},
		{"no version", `{"id":"a","method":"x"}`, `"a"`, jsonrpc.CodeInvalidRequest},
		{"neither", `{"jsonrpc":"2.0"}`, "null", jsonrpc.CodeInvalidRequest},
		{"a bad id", `{"jsonrpc":"2.0","id":{},"method":"x"}`, "null", jsonrpc.CodeInvalidRequest},
		{"a number", `5`, "null", jsonrpc.CodeInvalidRequest},
		{"an empty batch", `[]`, "null", jsonrpc.CodeInvalidRequest},
		{"a broken batch", `[{]`, "null", jsonrpc.CodeParseError},
		{"too long", `{"jsonrpc":"2.0","id":9,"method":"x","params":"` + strings.Repeat("x", maxLine) + `"}`, "9", jsonrpc.CodeInvalidRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := &buffer{}
			l := newLines(io.NopCloser(strings.NewReader(good+"\n"+tt.line+"\n\r\n"+good)), out)
			for range 2 {
				m, err := l.Read(t.Context())
				if r, ok := m.(*jsonrpc.Request); err != nil || !ok || r.Method != "ping" || r.ID.Raw() != int64(7) {
					t.Fatalf("%+v, %v", m, err)
				}
				if err := l.Write(t.Context(), &jsonrpc.Response{ID: m.(*jsonrpc.Request).ID, Result: json.RawMessage("{}")}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := l.Read(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v", err)
			}
			want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,`, tt.id, tt.code)
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s\nholds no %s", out.String(), want)
			}
		})
	}
}

func TestBatch(t *testing.T) {
	l := newLines(io.NopCloser(strings.NewReader(`[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"},5,{"jsonrpc":"2.0","id":"1","method":"c"}]`)), &buffer{})
	var got []string
	for range 3 {
		m, err := l.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := m.(*jsonrpc.Request)
		id := ""
		if r.IsCall() {
			id = idText(r.ID)
		}
		got = append(got, r.Method+id)
	}
	if s := strings.Join(got, " "); s != `a1 b c"1"` {
		t.Error(s)
	}
}

// TestLastAnswers: what was asked before the end of the input is still answered.
func TestLastAnswers(t *testing.T) {
	l := newLines(io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"a"}`+"\n")), &buffer{})
	m, err := l.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { // ends with the answer
		_, err := l.Read(t.Context())
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the end came before the answer: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := l.Write(t.Context(), &jsonrpc.Response{ID: m.(*jsonrpc.Request).ID, Result: json.RawMessage("{}")}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestBackpressure: who asks and asks and takes no answer waits at his pipe.
func TestBackpressure(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":1,"method":"a"}` + "\n"
	l := newLines(io.NopCloser(strings.NewReader(strings.Repeat(call, maxUnanswered+1))), &buffer{})
	var m jsonrpc.Message
	for range maxUnanswered {
		var err error
		if m, err = l.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	read := make(chan error, 1)
	go func() { // ends with the answer
		_, err := l.Read(t.Context())
		read <- err
	}()
	select {
	case err := <-read:
		t.Fatalf("one more is read: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := l.Write(t.Context(), &jsonrpc.Response{ID: m.(*jsonrpc.Request).ID, Result: json.RawMessage("{}")}); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
}

func TestStopEndsARead(t *testing.T) {
	in, w := io.Pipe()
	defer w.Close()
	l := newLines(in, &buffer{})
	ended := make(chan error, 1)
	go func() { // ends with stop
		_, err := l.Read(context.Background())
		ended <- err
	}()
	l.stop()
	if err := <-ended; err == nil {
		t.Error("the read goes on")
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"a"}` + "\n[{}]\n{\n\x00\n" + `{"jsonrpc":"2.0","id":"x","result":{}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1e9,"method":"a","params":{"_meta":{}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		out := &buffer{}
		l := newLines(io.NopCloser(bytes.NewReader(b)), out)
		l.stop() // nothing answers here
		for {
			m, err := l.Read(t.Context())
			if err != nil {
				break
			}
			if _, err := encodeLine(m); err != nil {
				t.Errorf("%+v: %v", m, err)
			}
		}
		for line := range strings.Lines(out.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%q", line)
			}
		}
	})
}

// TestLargeBatch: a batch of more calls than may be unanswered is handed on one by one.
func TestLargeBatch(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":1,"method":"a"}`
	l := newLines(io.NopCloser(strings.NewReader("["+strings.Repeat(call+",", maxUnanswered)+call+"]\n")), &buffer{})
	read := make(chan error, 1)
	go func() { // ends with the batch
		for range maxUnanswered + 1 {
			m, err := l.Read(context.Background())
			if err == nil {
				err = l.Write(context.Background(), &jsonrpc.Response{ID: m.(*jsonrpc.Request).ID, Result: json.RawMessage("{}")})
			}
			if err != nil {
				read <- err
				return
			}
		}
		read <- nil
	}()
	select {
	case err := <-read:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a large batch is not read to its end")
	}
}

// TestLastLongLine: the last line needs no end, whatever its length.
func TestLastLongLine(t *testing.T) {
	l := newLines(io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","method":"a","params":{"x":"`+strings.Repeat("x", 100<<10)+`"}}`)), &buffer{})
	if m, err := l.Read(t.Context()); err != nil || m.(*jsonrpc.Request).Method != "a" {
		t.Errorf("%v, %v", m, err)
	}
	if _, err := l.Read(t.Context()); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
