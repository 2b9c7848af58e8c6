package wire

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The first bytes of what is hashed, so that a digest of one kind is never one of
// another.
const (
	requestDomain = "limpet request v1\n"
	callDomain    = "limpet call v1\n"
	digestVersion = "v1:"
)

// ScriptHash is a script file that a command names, by the hash of its content.
type ScriptHash struct {
	Path   string `json:"path"`   // absolute, resolved
	SHA256 string `json:"sha256"` // lower-case hex
}

// Canonical gives the bytes that stand for a command: its JSON form with every zero
// left out, written as RFC 8785 (JCS) says. Equal commands have equal bytes, however
// they came in: msgpack or JSON, nil or empty, in whatever order.
//
// Left out are 0, false, "", empty lists, objects and bytes. Two fields are kept
// whenever they are set, for their zero means something: tty (a terminal of the
// default size) and umask. Elements of lists are never left out.
func (c *Command) Canonical() []byte {
	return appendCanonical(nil, reflect.ValueOf(c).Elem(), shapeOf(commandType))
}

// RequestHash identifies what a caller asked for: "v1:" and the hex SHA-256 over
// "limpet request v1\n" and the canonical bytes of the command as sent, before any
// default is filled in.
func RequestHash(c *Command) string { return digest(requestDomain, c.Canonical()) }

// call is what a call digest covers.
type call struct {
	Command *Command     `json:"command"`
	Worker  string       `json:"worker"`
	Scripts []ScriptHash `json:"scripts"`
}

// CallDigest identifies what will be run: the command with cwd, environment, shell,
// terminal and confinement resolved, on a worker, with the script files it names, in
// any order. An approval holds for one call digest.
func CallDigest(resolved *Command, worker string, scripts []ScriptHash) string {
	scripts = slices.Clone(scripts)
	slices.SortFunc(scripts, func(a, b ScriptHash) int {
		if n := strings.Compare(a.Path, b.Path); n != 0 {
			return n
		}
		return strings.Compare(a.SHA256, b.SHA256)
	})
	c := call{resolved, worker, slices.Compact(scripts)}
	return digest(callDomain, appendCanonical(nil, reflect.ValueOf(&c).Elem(), shapeOf(callType)))
}

func digest(domain string, b []byte) string {
	h := sha256.New()
	h.Write([]byte(domain))
	h.Write(b)
	return digestVersion + hex.EncodeToString(h.Sum(nil))
}

var (
	commandType = reflect.TypeFor[Command]()
	callType    = reflect.TypeFor[call]()
)

// keptZero are the fields whose zero is not their absence.
func keptZero(name string) bool { return name == "tty" || name == "umask" }

func appendCanonical(b []byte, v reflect.Value, s *shape) []byte {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch s.kind {
	case kindString:
		return appendString(b, v.String())
	case kindBool:
		return strconv.AppendBool(b, v.Bool())
	case kindInt:
		return strconv.AppendInt(b, v.Int(), 10)
	case kindUint:
		return strconv.AppendUint(b, v.Uint(), 10)
	case kindBytes:
		return appendString(b, base64.StdEncoding.EncodeToString(v.Bytes()))
	case kindList:
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, v.Index(i), s.elem)
		}
		return append(b, ']')
	case kindMap:
		return appendMap(b, v, s)
	case kindStruct:
		return appendStruct(b, v, s)
	}
	panic("wire: a command holds a " + s.kind.String() + ", which has no canonical form")
}

func appendStruct(b []byte, v reflect.Value, s *shape) []byte {
	b = append(b, '{')
	first := true
	for _, i := range s.sorted {
		f := s.fields[i]
		fv := v.FieldByIndex(f.path)
		if isEmpty(fv, f.shape) && (!keptZero(f.name) || fv.IsNil()) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, f.name)
		b = append(b, ':')
		b = appendCanonical(b, fv, f.shape)
	}
	return append(b, '}')
}

// appendMap writes a map of labels: keys in the order of their UTF-16 code units, as
// RFC 8785 wants; values always, for a label may be empty.
func appendMap(b []byte, v reflect.Value, s *shape) []byte {
	names := v.MapKeys()
	slices.SortFunc(names, func(x, y reflect.Value) int {
		return cmp.Or(
			slices.Compare(utf16.Encode([]rune(x.String())), utf16.Encode([]rune(y.String()))),
			strings.Compare(x.String(), y.String()), // not UTF-8
		)
	})
	b = append(b, '{')
	for i, k := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k.String())
		b = append(b, ':')
		b = appendCanonical(b, v.MapIndex(k), s.elem)
	}
	return append(b, '}')
}

// isEmpty reports whether a field is left out: zero all the way down.
func isEmpty(v reflect.Value, s *shape) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	switch s.kind {
	case kindList, kindMap, kindBytes:
		return v.Len() == 0
	case kindStruct:
		return !slices.ContainsFunc(s.fields, func(f field) bool {
			fv := v.FieldByIndex(f.path)
			return !isEmpty(fv, f.shape) || keptZero(f.name) && !fv.IsNil()
		})
	}
	return v.IsZero()
}

// appendString quotes as RFC 8785 does: the shortest escape where one is needed, all
// else as it is. Bytes that are not UTF-8 are passed through, so that two texts never
// share their bytes; Validate refuses them before.
func appendString(b []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			_, n := utf8.DecodeRuneInString(s[i:])
			b = append(b, s[i:i+n]...)
			i += n
			continue
		}
		i++
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			if c < 0x20 {
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}
