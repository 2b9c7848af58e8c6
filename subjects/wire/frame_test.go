package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// outputSamples are messages of the OUTPUT stream with what they are to decode to.
func outputSamples() map[string]OutputMessage {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	return map[string]OutputMessage{
		"first": {
			OutputHeader: OutputHeader{Incarnation: 7, Used: 97, Raw: 9},
			Chunks: []OutputChunk{
				{Stream: Stdout, At: at, Source: 6, Data: []byte("hello\n")},
				{Stream: Stderr, At: at.Add(time.Millisecond), Source: 3, Data: []byte("no\n")},
			},
		},
		"last": {
			OutputHeader: OutputHeader{
				End: true, Complete: true, Incarnation: 8, First: 300, Offset: 1_000_000, Used: 1 << 20, Raw: 700_000,
				Streams: []OutputStream{
					{Stream: Stdout, State: [6]byte{0xc3, 0, 0, 1}, Bytes: 999_000, Lines: 12_000},
					{Stream: Stderr, Bytes: 990, Lines: 9},
					{Stream: 3, Bytes: 10},
				},
			},
			Chunks: []OutputChunk{
				{Stream: Stdout, At: at, Source: 1, Data: []byte{0xa9}},
				{Stream: 3, OrderUnknown: true, At: at, Source: 4, Data: []byte("***")},
			},
		},
		"end": {OutputHeader: OutputHeader{End: true, Incarnation: 9, First: 2, Offset: 9, Used: 153, Raw: 9}},
	}
}

func encodeOutput(m *OutputMessage) []byte {
	b := AppendOutputHeader(nil, &m.OutputHeader)
	for i := range m.Chunks {
		b = AppendOutputChunk(b, &m.Chunks[i])
	}
	return b
}

// The bytes of the OUTPUT stream are pinned: they are kept for days, and PROTOCOL.md has
// them in a table.
func TestOutputGoldenBytes(t *testing.T) {
	for name, m := range outputSamples() {
		b := encodeOutput(&m)
		path := filepath.Join("testdata", "output", name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(lines(hex.EncodeToString(b))+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := lines(hex.EncodeToString(b)) + "\n"; got != string(want) {
			t.Errorf("%s: the bytes changed\ngot\n%s\nwant\n%s", name, got, want)
		}
		back, err := DecodeOutput(b)
		if err != nil || !reflect.DeepEqual(*back, m) {
			t.Errorf("%s: %+v, %v", name, back, err)
		}
		if back.Next() != m.First+int64(len(m.Chunks)) {
			t.Errorf("%s: next is %d", name, back.Next())
		}
		if n := back.NextOffset(); name == "last" && n != 1_000_005 || name == "first" && n != 9 || name == "end" && n != 9 {
			t.Errorf("%s: the next offset is %d", name, n)
		}
	}
}

func TestSetOutputUsed(t *testing.T) {
	m := outputSamples()["first"]
	b := encodeOutput(&m)
	SetOutputUsed(b, 4711, 815, true, true)
	got, err := DecodeOutput(b)
	if err != nil || got.Used != 4711 || got.Raw != 815 || !got.End || !got.Complete || len(got.Chunks) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	m = outputSamples()["end"]
	b = encodeOutput(&m)
	SetOutputUsed(b, 1, 1, false, true)
	if got, err = DecodeOutput(b); err != nil || got.Complete {
		t.Errorf("complete without an end: %+v, %v", got, err)
	}
}

// The numbers of the table in PROTOCOL.md are those of the code.
func TestProtocolShowsTheOutputTable(t *testing.T) {
	text := section(t, "16. Output")
	for _, row := range []string{
		"| 0 | 2 | magic, `4c 4f` |", "| 2 | 1 | version, 1 |", "| 3 | 1 | flags: 1 end, 2 complete |", "| 4 | 1 | number of streams, 0..64 |",
		"| 8 | 8 | incarnation of the writer |", "| 16 | 8 | number of the first chunk |", "| 24 | 8 | raw offset of the first chunk |",
		"| 32 | 8 | bytes of all messages so far, this one included |", "| 40 | 8 | raw bytes in all messages so far, this one included |",
		"| 48 | 8 | 0 |",
		"| 0 | 1 | stream |", "| 2 | 6 | state of the text decoder, opaque |", "| 8 | 8 | raw bytes of the stream before |", "| 16 | 8 | line feeds of the stream before |",
		"| 1 | 1 | flags: 1 order unknown |", "| 2 | 2 | length of the data |", "| 4 | 2 | raw bytes it stands for |", "| 8 | 8 | time, unix nanoseconds |",
		"| 16 | … | data |",
	} {
		if !strings.Contains(text, "\n"+row+"\n") {
			t.Errorf("PROTOCOL.md lacks the row\n%s", row)
		}
	}
	b, err := os.ReadFile(filepath.Join("testdata", "output", "first.hex"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "```\n"+string(b)+"```") {
		t.Errorf("PROTOCOL.md lacks the example\n%s", b)
	}
}

func TestOutputRefused(t *testing.T) {
	m := outputSamples()["last"]
	good := encodeOutput(&m)
	change := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	chunk := outputHeaderLen + 3*outputStreamLen
	for name, b := range map[string][]byte{
		"empty":                  {},
		"half a header":          good[:outputHeaderLen-1],
		"another magic":          change(0, 'x'),
		"half a stream":          good[:chunk-1],
		"half a chunk":           good[:chunk+7],
		"half of the data":       good[:len(good)-1],
		"a byte too much":        append(bytes.Clone(good), 0),
		"a negative number":      change(23, 0x80),
		"more streams":           change(4, 200),
		"no stream":              change(outputHeaderLen, 0),
		"stream 65":              change(outputHeaderLen, 65),
		"more bytes than offset": change(outputHeaderLen+8, 0xff, 0xff, 0xff, 0xff, 0xff),
		"chunk of no stream":     change(chunk, 0),
		"chunk of no bytes":      change(chunk+4, 0, 0),
	} {
		if m, err := DecodeOutput(b); !errors.Is(err, &Error{Code: CodeSpoolCorrupt}) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if _, err := DecodeOutput(change(2, 2)); !errors.Is(err, &Error{Code: CodeUnsupportedVersion}) {
		t.Errorf("another version: %v", err)
	}
}

// FuzzDecodeOutput: what is read is written again with the same meaning, in no more bytes.
func FuzzDecodeOutput(f *testing.F) {
	for _, m := range outputSamples() {
		f.Add(encodeOutput(&m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeOutput(b)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Code == CodeInternal {
				t.Errorf("%v", err)
			}
			return
		}
		again := encodeOutput(m)
		if len(again) != len(b) {
			t.Errorf("%d bytes became %d", len(b), len(again))
		}
		back, err := DecodeOutput(again)
		if err != nil || !reflect.DeepEqual(m, back) {
			t.Errorf("%+v\n%+v, %v", m, back, err)
		}
	})
}
