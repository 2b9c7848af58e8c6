package actors

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// shellState is a directory and the exported variables, as a shell said them.
type shellState struct {
	dir string
	env map[string]string
}

// errNoDump: the shell did not come to say its state, or not to the end.
var errNoDump = errors.New("the shell did not say its state")

// readDump reads what a wrapper wrote: the state before the text and after it. A part of
// it is an error.
func readDump(b []byte) (before, after shellState, err error) {
	parts := bytes.Split(b, []byte{0})
	var first, last [][]byte
	switch {
	case len(parts) != 5:
		return before, after, errNoDump
	case string(parts[4]) == "ok": // bash
		first, last = parts[:2], parts[2:4]
	case string(bytes.TrimRight(parts[2], " ")) == "ok": // dash
		if at := len(b) - len(parts[4]) - len(parts[3]) - 2; at != dashRoom && at != dashWide {
			return before, after, errNoDump
		}
		first, last = parts[3:], parts[:2]
	default:
		return before, after, errNoDump
	}
	if before, err = readState(first[0], first[1]); err == nil {
		after, err = readState(last[0], last[1])
	}
	return before, after, err
}

// readState reads one state. A directory that the shell itself does not know is empty.
func readState(dir, env []byte) (s shellState, err error) {
	d, ended := strings.CutSuffix(string(dir), "\n")
	if d != "" && (!ended || !path.IsAbs(d)) {
		return s, fmt.Errorf("%q is no absolute directory and the end of a line", d)
	}
	s.dir = d
	if len(env) == 0 { // it exports PWD at the least, unless export is disabled
		return s, errNoDump
	}
	s.env, err = readExports(env)
	return s, err
}

// readExports reads what `export -p` of bash and dash says. Arrays, which no environment
// has, and names without a value are left out.
func readExports(b []byte) (map[string]string, error) {
	env := map[string]string{}
	for r := (&exports{b}); len(r.rest) > 0; {
		name, value, ok, err := r.next()
		if err != nil {
			return nil, err
		}
		if ok {
			env[name] = value
		}
	}
	return env, nil
}

// exports is what is left to read of `export -p`.
type exports struct{ rest []byte }

// next reads one declaration; ok is false when it is none of the environment.
func (r *exports) next() (name, value string, ok bool, err error) {
	array := false
	switch {
	case r.skip("export "):
	case r.skip("declare -"):
		flags := r.while(isLetter)
		array = strings.ContainsAny(flags, "aA")
		ok = r.skip(" ") && flags != ""
		if !ok {
			return "", "", false, r.fail("a declaration")
		}
	default:
		return "", "", false, r.fail("a declaration")
	}
	if name = r.while(isNameByte); name == "" || name[0] <= '9' {
		return "", "", false, r.fail("a name")
	}
	if r.skip("\n") {
		return name, "", false, nil
	}
	if !r.skip("=") {
		return "", "", false, r.fail("= or the end of a line")
	}
	if array {
		err = r.array()
	} else {
		value, err = r.value()
	}
	if err == nil && !r.skip("\n") {
		err = r.fail("the end of a line")
	}
	return name, value, err == nil && !array, err
}

// array passes over ([0]="x" [1]="y").
func (r *exports) array() error {
	if !r.skip("(") {
		return r.fail("(")
	}
	for !r.skip(")") {
		if r.skip("[") || r.skip("]") || r.skip("=") || r.skip(" ") {
			continue
		}
		before := len(r.rest)
		if _, err := r.value(); err != nil {
			return err
		}
		if len(r.rest) == before {
			return r.fail(")")
		}
	}
	return nil
}

// value reads a word: quoted pieces, and what stands unquoted between them.
func (r *exports) value() (string, error) {
	var v []byte
	for {
		var err error
		switch {
		case r.skip(`'`):
			v, err = r.single(v)
		case r.skip(`"`):
			v, err = r.double(v)
		case r.skip(`$'`):
			v, err = r.ansi(v)
		default:
			plain := r.while(isPlain)
			if plain == "" {
				return string(v), nil
			}
			v = append(v, plain...)
		}
		if err != nil {
			return "", err
		}
	}
}

func (r *exports) single(v []byte) ([]byte, error) {
	i := bytes.IndexByte(r.rest, '\'')
	if i < 0 {
		return nil, r.fail("the closing '")
	}
	v = append(v, r.rest[:i]...)
	r.rest = r.rest[i+1:]
	return v, nil
}

func (r *exports) double(v []byte) ([]byte, error) {
	for i := 0; i < len(r.rest); i++ {
		switch c := r.rest[i]; c {
		case '"':
			r.rest = r.rest[i+1:]
			return v, nil
		case '$', '`': // never without a backslash
			r.rest = r.rest[i:]
			return nil, r.fail("a quoted character")
		case '\\':
			if i++; i < len(r.rest) && strings.IndexByte("$`\"\\", r.rest[i]) >= 0 {
				v = append(v, r.rest[i])
				continue
			}
			return nil, r.fail("a character behind the backslash")
		default:
			v = append(v, c)
		}
	}
	return nil, r.fail(`the closing "`)
}

// ansi reads $'…' behind its opening quote.
func (r *exports) ansi(v []byte) ([]byte, error) {
	for len(r.rest) > 0 {
		c := r.rest[0]
		r.rest = r.rest[1:]
		switch c {
		case '\'':
			return v, nil
		case '\\':
			var err error
			if v, err = r.escape(v); err != nil {
				return nil, err
			}
		default:
			v = append(v, c)
		}
	}
	return nil, r.fail("the closing '")
}

// The escapes of one letter, and what they mean.
const (
	escapes  = `abeEfnrtv\'"?`
	escapeds = "\a\b\x1b\x1b\f\n\r\t\v\\'\"?"
)

// escape reads what stands behind a backslash in $'…'.
func (r *exports) escape(v []byte) ([]byte, error) {
	if len(r.rest) == 0 {
		return nil, r.fail("a character behind the backslash")
	}
	c := r.rest[0]
	if i := strings.IndexByte(escapes, c); i >= 0 {
		r.rest = r.rest[1:]
		return append(v, escapeds[i]), nil
	}
	switch c {
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n, _ := r.digits(8, 3)
		if n == 0 || n > 0xff {
			return nil, r.fail("the digits of a byte")
		}
		return append(v, byte(n)), nil
	case 'x', 'u', 'U':
		r.rest = r.rest[1:]
		most := 8
		switch c {
		case 'x':
			most = 2
		case 'u':
			most = 4
		}
		n, ok := r.digits(16, most)
		switch {
		case !ok, n == 0, c != 'x' && (n > utf8.MaxRune || n >= 0xd800 && n < 0xe000):
			return nil, r.fail("the digits of a character")
		case c == 'x':
			return append(v, byte(n)), nil
		}
		return utf8.AppendRune(v, rune(n)), nil
	}
	return nil, r.fail("an escape that bash writes")
}

// digits reads up to most digits of a number.
func (r *exports) digits(base, most int) (n int64, ok bool) {
	for ; most > 0 && len(r.rest) > 0; most-- {
		d := digit(r.rest[0])
		if d < 0 || d >= int64(base) {
			break
		}
		n, ok = n*int64(base)+d, true
		r.rest = r.rest[1:]
	}
	return n, ok
}

func digit(c byte) int64 {
	switch {
	case c >= '0' && c <= '9':
		return int64(c - '0')
	case c >= 'a' && c <= 'f':
		return int64(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int64(c-'A') + 10
	}
	return -1
}

func (r *exports) skip(s string) bool {
	rest, ok := bytes.CutPrefix(r.rest, []byte(s))
	if ok {
		r.rest = rest
	}
	return ok
}

func (r *exports) while(is func(byte) bool) string {
	i := 0
	for i < len(r.rest) && is(r.rest[i]) {
		i++
	}
	s := string(r.rest[:i])
	r.rest = r.rest[i:]
	return s
}

// fail never quotes a value, which may be a secret.
func (r *exports) fail(want string) error {
	return fmt.Errorf("%d bytes before the end of the exported variables: want %s", len(r.rest), want)
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isNameByte(c byte) bool { return isLetter(c) || c == '_' || c >= '0' && c <= '9' }

// isPlain is what a shell leaves unquoted.
func isPlain(c byte) bool {
	return isNameByte(c) || c >= utf8.RuneSelf || strings.IndexByte("%+,-./:@^~", c) >= 0
}
