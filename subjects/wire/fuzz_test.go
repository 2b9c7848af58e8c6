package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/limpet-sh/limpet/subjects"
)

// FuzzDecodeRequest: whatever comes, a request is refused with a typed error or is
// valid, has the same meaning after another round trip, and the same hash in both
// encodings.
func FuzzDecodeRequest(f *testing.F) {
	for i, verb := range Verbs() {
		for _, s := range samples() {
			if s.name != verb {
				continue
			}
			for _, ct := range contentTypes {
				b, err := Marshal(ct, s.full)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(uint8(i), ct == subjects.TypeJSON, b)
			}
		}
		for _, c := range refusals {
			if c.verb == verb {
				f.Add(uint8(i), true, []byte(c.body))
			}
		}
		f.Add(uint8(i), true, []byte(`{"session":"s","process":"p","command":{"argv":["ls"],"labels":{"a":"b"}},"all":true}`))
		f.Add(uint8(i), true, []byte(`{"session":"s","command":{"text":"ls","tty":{},"umask":0,"input":"aGkK"}}`))
	}
	for _, c := range malformed {
		f.Add(uint8(5), c.ct == subjects.TypeJSON, []byte(c.data))
	}
	f.Fuzz(func(t *testing.T, v uint8, asJSON bool, data []byte) {
		verb := Verbs()[int(v)%len(Verbs())]
		r, err := DecodeRequest(verb, contentType(asJSON), data)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Code == CodeInternal || len(e.Message) > 5000 {
				t.Errorf("%v", err)
			}
			return
		}
		for _, ct := range contentTypes {
			b, err := Marshal(ct, r)
			if err != nil {
				t.Fatal(err)
			}
			again, err := DecodeRequest(verb, ct, b)
			if err != nil {
				t.Fatalf("%s of %q: %v", ct, data, err)
			}
			b2, err := Marshal(ct, again)
			if err != nil || !bytes.Equal(b, b2) {
				t.Errorf("%s: %q, then %q, %v", ct, b, b2, err)
			}
			if c, c2 := commandOf(r), commandOf(again); c != nil {
				if RequestHash(c) != RequestHash(c2) || !json.Valid(c.Canonical()) {
					t.Errorf("%s: %s and %s", ct, c.Canonical(), c2.Canonical())
				}
			}
		}
	})
}

func contentType(asJSON bool) string {
	if asJSON {
		return subjects.TypeJSON
	}
	return subjects.TypeMsgpack
}

func commandOf(r Request) *Command {
	switch m := r.(type) {
	case *Start:
		return &m.Command
	case *Run:
		return &m.Command
	case *Prepare:
		return &m.Command
	}
	return nil
}

// FuzzDecodeMessage: every message, read leniently, never panics; what decodes is
// stable: encoded and decoded again it gives the same bytes.
func FuzzDecodeMessage(f *testing.F) {
	all := samples()
	for i, s := range all {
		for _, ct := range contentTypes {
			for _, v := range []any{s.full, s.empty} {
				b, err := Marshal(ct, v)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(uint8(i), ct == subjects.TypeJSON, false, b)
			}
		}
		f.Add(uint8(i), true, false, []byte(`{"error":{"code":"x","message":"m","details":{"a":[1,2.5,null,{"b":true}]}},"novel":[{}]}`))
	}
	for _, c := range malformed {
		f.Add(uint8(5), c.ct == subjects.TypeJSON, true, []byte(c.data))
	}
	f.Fuzz(func(t *testing.T, n uint8, asJSON, strict bool, data []byte) {
		typ := reflect.TypeOf(all[int(n)%len(all)].empty).Elem()
		ct := contentType(asJSON)
		v := reflect.New(typ).Interface()
		if err := Unmarshal(ct, data, v, strict); err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || len(e.Message) > 5000 {
				t.Errorf("%v", err)
			}
			return
		}
		b, err := Marshal(ct, v)
		if err != nil {
			t.Fatalf("%T from %q: %v", v, data, err)
		}
		again := reflect.New(typ).Interface()
		if err := Unmarshal(ct, b, again, strict); err != nil {
			t.Fatalf("%T from %q: %v", v, b, err)
		}
		b2, err := Marshal(ct, again)
		if err != nil || !bytes.Equal(b, b2) {
			t.Errorf("%q, then %q, %v", b, b2, err)
		}
	})
}
