package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/limpet-sh/limpet/subjects"
)

// Marshal encodes v. The content type is [subjects.TypeMsgpack], [subjects.TypeJSON],
// or empty for msgpack. Equal values give equal bytes: map keys are sorted.
func Marshal(contentType string, v any) ([]byte, error) {
	json, err := isJSON(contentType)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if json {
		err = marshalJSON(&buf, v)
	} else {
		err = marshalMsgpack(&buf, v)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return buf.Bytes(), nil
}

func marshalJSON(buf *bytes.Buffer, v any) error {
	e := json.NewEncoder(buf)
	e.SetEscapeHTML(false) // "a && b" is for people to read, and never lands in a page unescaped
	if err := e.Encode(v); err != nil {
		return err
	}
	buf.Truncate(buf.Len() - 1) // the encoder's newline
	return nil
}

func marshalMsgpack(buf *bytes.Buffer, v any) error {
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(buf)
	e.SetCustomStructTag("json")
	e.SetSortMapKeys(true)
	e.UseCompactInts(true)
	return e.Encode(v)
}

// Unmarshal decodes data into v, a pointer to a message. Content types are those of
// [Marshal]. Strict is for commands: unknown fields, keys given twice, null in lists
// and text that is not UTF-8 are refused. Answers and events are read leniently.
//
// Refused in both: a value of another type (a number is never read from text, a
// boolean or a fraction), a number out of range, lengths beyond the data, bytes after
// the message, nesting deeper than 32. The error is always an *[Error]; v is then
// untouched. Memory stays in proportion to len(data), whatever the data claims.
func Unmarshal(contentType string, data []byte, v any, strict bool) error {
	json, err := isJSON(contentType)
	if err != nil {
		return err
	}
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("decode into %T: not a pointer to a message", v)
	}
	s := shapeOf(p.Type().Elem())
	// The data is judged before it is decoded: the decoders are generous (they read
	// integers from floats, text from bytes) and do not say which field is at fault.
	if json {
		err = checkJSON(data, s, strict)
	} else {
		err = checkMsgpack(data, s, strict)
	}
	if err != nil {
		return err
	}
	fresh := reflect.New(p.Type().Elem())
	if json {
		err = unmarshalJSON(data, fresh.Interface())
	} else {
		err = unmarshalMsgpack(data, fresh.Interface())
	}
	if err != nil {
		return &Error{Code: CodeInvalidArguments, Message: "the message cannot be decoded: " + err.Error()}
	}
	utcTimes(fresh.Elem(), s)
	p.Elem().Set(fresh.Elem())
	return nil
}

func unmarshalJSON(data []byte, v any) error { return json.Unmarshal(data, v) }

func unmarshalMsgpack(data []byte, v any) error {
	d := msgpack.GetDecoder()
	defer msgpack.PutDecoder(d)
	d.Reset(bytes.NewReader(data))
	d.SetCustomStructTag("json")
	d.UseLooseInterfaceDecoding(true) // int64, uint64, float64 in details, whatever the width on the wire
	return d.Decode(v)
}

// isJSON tells the two content types apart and refuses any other.
func isJSON(contentType string) (bool, error) {
	switch contentType {
	case "", subjects.TypeMsgpack:
		return false, nil
	case subjects.TypeJSON:
		return true, nil
	}
	return false, Invalid(subjects.HeaderContentType, "%s is not spoken here; send %s or %s",
		quote(contentType), subjects.TypeMsgpack, subjects.TypeJSON)
}

// AsError gives the error that a caller may see: the *[Error] in err's chain,
// deadline_exceeded for an expired context, or internal without a word of what
// happened. Nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Error{Code: CodeDeadlineExceeded, Message: "the time that the request allowed is up"}
	}
	return &Error{Code: CodeInternal, Message: "an internal fault of the supervisor; its log says more"}
}
