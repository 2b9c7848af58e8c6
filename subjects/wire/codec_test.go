package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/limpet-sh/limpet/subjects"
)

var contentTypes = []string{subjects.TypeMsgpack, subjects.TypeJSON}

func TestMessagesSurviveTheRoundTrip(t *testing.T) {
	for _, s := range samples() {
		for _, ct := range contentTypes {
			for _, v := range []any{s.full, s.empty} {
				t.Run(s.name+" "+ct, func(t *testing.T) {
					b, err := Marshal(ct, v)
					if err != nil {
						t.Fatal(err)
					}
					got := reflect.New(reflect.TypeOf(v).Elem()).Interface()
					if err := Unmarshal(ct, b, got, true); err != nil {
						t.Fatalf("%v\n%q", err, b)
					}
					if !reflect.DeepEqual(got, v) {
						t.Errorf("got  %+v\nwant %+v", got, v)
					}
					again, err := Marshal(ct, got)
					if err != nil || !bytes.Equal(again, b) {
						t.Errorf("encoded again: %v\n%q\n%q", err, again, b)
					}
				})
			}
		}
	}
}

// Embedded structs must be inlined alike, or one content type would nest what the
// other does not.
func TestEncodingsAgreeOnFieldNames(t *testing.T) {
	for _, s := range samples() {
		j, err := Marshal(subjects.TypeJSON, s.full)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Marshal(subjects.TypeMsgpack, s.full)
		if err != nil {
			t.Fatal(err)
		}
		var jm, mm map[string]any
		if err := json.Unmarshal(j, &jm); err != nil {
			t.Fatal(err)
		}
		if err := msgpack.Unmarshal(m, &mm); err != nil {
			t.Fatal(err)
		}
		jk, mk := paths(jm), paths(mm)
		if !slices.Equal(jk, mk) {
			t.Errorf("%s: JSON has %v\nmsgpack has %v", s.name, jk, mk)
		}
	}
}

// paths lists the keys of nested objects, sorted.
func paths(m map[string]any) []string {
	var out []string
	for k, v := range m {
		out = append(out, k)
		if sub, ok := v.(map[string]any); ok {
			for _, p := range paths(sub) {
				out = append(out, k+"."+p)
			}
		}
	}
	slices.Sort(out)
	return out
}
