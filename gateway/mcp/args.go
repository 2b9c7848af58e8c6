package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// maxShown bounds, in bytes, what an error shows of an argument.
const maxShown = 40

// parseArgs reads the arguments of a call, all of them before anything happens. A field
// that is null counts as left out, because clients with strict schemas send all.
func parseArgs(raw json.RawMessage) (*args, error) {
	a := &args{action: actRun, names: make(map[string]bool, 8)}
	pairs, err := members(raw)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if p.name == "action" {
			if a.action, err = parseAction(p.value); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range pairs {
		if p.name == "action" {
			continue
		}
		if err := a.set(p.name, p.value); err != nil {
			return nil, err
		}
	}
	return a, a.check()
}

type member struct {
	name  string
	value json.RawMessage
}

// members are those of a JSON object that are not null, each name once.
func members(raw json.RawMessage) ([]member, error) {
	if len(bytes.TrimSpace(raw)) == 0 || string(bytes.TrimSpace(raw)) == "null" {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, wire.Invalid("arguments", "no object; give the arguments by name")
	}
	all := make([]member, 0, 8)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		m := member{name: t.(string)} //nolint:errcheck // a name in an object is a string
		if err := d.Decode(&m.value); err != nil {
			return nil, notJSON(err)
		}
		for _, o := range all {
			if o.name == m.name {
				return nil, wire.Invalid(shown(m.name), "given twice")
			}
		}
		if string(m.value) != "null" {
			all = append(all, m)
		}
		if len(all) > len(fields)+1 {
			return nil, wire.Invalid("arguments", "more of them than there are")
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, notJSON(err)
	}
	return all, nil
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return wire.Invalid("arguments", "cut off")
	}
	return wire.Invalid("arguments", "no JSON")
}

func parseAction(raw json.RawMessage) (action, error) {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return 0, wire.Invalid("action", "%s; give one of %s", typeOf(raw), strings.Join(actionNames, ", "))
	}
	a, ok := actionOf(name)
	if ok {
		return a, nil
	}
	near := otherActions[strings.ToLower(name)]
	if near == "" {
		near = wire.Nearest(name, actionNames)
	}
	if near == "" {
		return 0, wire.Invalid("action", "%s is none of %s", strconv.Quote(shown(name)), strings.Join(actionNames, ", "))
	}
	e := wire.Invalid("action", "%s is none; the nearest is %s", strconv.Quote(shown(name)), near)
	e.Details = map[string]any{"nearest": near}
	return 0, e
}

// set takes one argument, if it belongs to the action.
func (a *args) set(name string, raw json.RawMessage) error {
	f := fieldOf(name)
	switch {
	case f == nil:
		return a.unknown(name)
	case f.of&a.action == 0 && name == "command":
		return wire.Invalid(name, "not with %s, which works on what runs already; leave it out, or run it as a command of its own", a.action)
	case f.of&a.action == 0:
		return wire.Invalid(name, "not with %s; it belongs to %s", a.action, f.of)
	}
	a.names[name] = true
	return f.parse(a, raw)
}

func fieldOf(name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

func (a *args) unknown(name string) error {
	var names []string
	for i := range fields {
		if fields[i].of&a.action != 0 {
			names = append(names, fields[i].name)
		}
	}
	e := &wire.Error{Code: wire.CodeUnknownField, Field: shown(name)}
	near := otherNames[strings.ToLower(name)]
	if f := fieldOf(near); f == nil || f.of&a.action == 0 {
		near = wire.Nearest(name, names)
	}
	switch lower := strings.ToLower(name); {
	case lower == "run_in_background" || lower == "background" || lower == "is_background":
		e.Message = shown(name) + ": no such field; action start leaves a command running"
		return e
	case near == "":
		e.Message = fmt.Sprintf("%s: no such field of %s; there are %s", shown(name), a.action, strings.Join(names, ", "))
		return e
	}
	e.Message = fmt.Sprintf("%s: no such field; the nearest is %s", shown(name), near)
	if strings.HasSuffix(near, "_s") {
		e.Message += ", in seconds"
	}
	e.Details = map[string]any{"nearest": near}
	return e
}

// parse reads the value of a field.
func (f *field) parse(a *args, raw json.RawMessage) error {
	switch f.kind {
	case kindSeconds, kindInt:
		return f.number(a, raw)
	case kindStrings, kindMap:
		return f.collection(a, raw)
	case kindBool:
		if json.Unmarshal(raw, f.into(a)) != nil {
			return wire.Invalid(f.name, "%s; give true or false", typeOf(raw))
		}
		return nil
	}
	s := f.into(a).(*string) //nolint:errcheck // what is left are strings
	if json.Unmarshal(raw, s) != nil {
		return wire.Invalid(f.name, "%s; give text", typeOf(raw))
	}
	return f.word(*s)
}

// word checks a text of which there are only some.
func (f *field) word(s string) error {
	if len(f.oneOf) == 0 || slices.Contains(f.oneOf, s) {
		return nil
	}
	e := wire.Invalid(f.name, "%s is none of %s", strconv.Quote(shown(s)), strings.Join(f.oneOf, ", "))
	if near := wire.Nearest(s, f.oneOf); near != "" {
		e.Details = map[string]any{"nearest": near}
	}
	return e
}

func (f *field) number(a *args, raw json.RawMessage) error {
	unit := "a whole number"
	if f.kind == kindSeconds {
		unit = "a number of seconds"
	}
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return wire.Invalid(f.name, "%s; give %s", typeOf(raw), unit)
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsInf(n, 0) {
		return wire.Invalid(f.name, "%s is out of range", shown(string(raw)))
	}
	if f.kind == kindInt && n != math.Trunc(n) {
		return wire.Invalid(f.name, "%s is no whole number", shown(string(raw)))
	}
	if err := f.within(n, raw); err != nil {
		return err
	}
	p := f.into(a).(*int64) //nolint:errcheck // all numbers are
	if *p = int64(n); f.kind == kindSeconds {
		*p = int64(math.Ceil(n * 1000))
	}
	return nil
}

// within checks the bounds; a number of seconds that looks like milliseconds is told (A9).
func (f *field) within(n float64, raw json.RawMessage) error {
	if f.low == 0 && f.high == 0 && n >= 0 || n >= f.low && n <= f.high {
		return nil
	}
	if f.high == 0 {
		return wire.Invalid(f.name, "%s is negative", shown(string(raw)))
	}
	e := wire.Invalid(f.name, "%s is not within %s to %s", shown(string(raw)), plain(f.low), plain(f.high))
	if f.kind != kindSeconds {
		return e
	}
	e.Message += " seconds"
	if s := n / 1000; n > f.high && s >= f.low && s <= f.high {
		e.Message += fmt.Sprintf("; it looks like milliseconds: did you mean %s seconds?", plain(s))
		e.Details = map[string]any{"did_you_mean": s}
	} else if f.name == "timeout_s" {
		e.Message += "; 0 is no limit"
	}
	return e
}

func (f *field) collection(a *args, raw json.RawMessage) error {
	what := "a list of texts"
	if f.kind == kindMap {
		what = "an object of names and texts"
	}
	if json.Unmarshal(raw, f.into(a)) != nil {
		return wire.Invalid(f.name, "%s; give %s", typeOf(raw), what)
	}
	return nil
}

// typeOf says what a JSON value is, in the words of who reads an error.
func typeOf(raw json.RawMessage) string {
	switch s := shown(string(raw)); raw[0] {
	case '"':
		return "the text " + s
	case '{':
		return "an object of another kind"
	case '[':
		return "a list of another kind"
	default:
		return s
	}
}

// shown is as much of a text of somebody else's as an error shows.
func shown(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
