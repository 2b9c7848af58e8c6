package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

// The bytes of every message are pinned: they are stored for days and read by other
// versions and other languages. A change here is a change of the protocol.
func TestGoldenBytes(t *testing.T) {
	names := map[string]bool{}
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			j, err := Marshal(subjects.TypeJSON, s.full)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Marshal(subjects.TypeMsgpack, s.full)
			if err != nil {
				t.Fatal(err)
			}
			var empty []byte
			if empty, err = Marshal(subjects.TypeJSON, s.empty); err != nil {
				t.Fatal(err)
			}
			golden := []byte("full, JSON\n" + string(j) + "\nempty, JSON\n" + string(empty) + "\nfull, msgpack\n" + lines(hex.EncodeToString(m)) + "\n")
			path := filepath.Join("testdata", s.name+".golden")
			names[path] = true
			if *update {
				if err := os.WriteFile(path, golden, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(golden, want) {
				t.Errorf("the bytes changed\ngot\n%s\nwant\n%s", golden, want)
			}
		})
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !names[f] {
			t.Errorf("%s belongs to no message", f)
		}
	}
}

// lines breaks hex into lines of 32 bytes.
func lines(s string) string {
	var b strings.Builder
	for len(s) > 64 {
		b.WriteString(s[:64] + "\n")
		s = s[64:]
	}
	return b.String() + s
}
