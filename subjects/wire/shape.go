package wire

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// kind is what a value looks like on the wire.
type kind uint8

const (
	kindAny kind = iota // anything within the depth
	kindString
	kindBool
	kindInt
	kindUint
	kindFloat
	kindBytes
	kindTime
	kindStruct
	kindList
	kindMap
)

func (k kind) String() string {
	switch k {
	case kindString:
		return "a string"
	case kindBool:
		return "true or false"
	case kindInt, kindUint:
		return "a whole number"
	case kindFloat:
		return "a number"
	case kindBytes:
		return "bytes (in JSON a base64 string)"
	case kindTime:
		return "a time (RFC 3339 in JSON, the timestamp extension in msgpack)"
	case kindStruct, kindMap:
		return "an object"
	case kindList:
		return "a list"
	}
	return "a value"
}

// shape is a Go type as the wire sees it. Pointers are transparent.
type shape struct {
	kind   kind
	bits   int            // of a number
	size   int            // bytes that one value takes in memory, at least
	elem   *shape         // of a list or map
	fields []field        // of a struct, embedded ones inlined
	index  map[string]int // name to place in fields
	sorted []int          // places in the order of names
	times  bool           // a time is somewhere inside
}

type field struct {
	name string
	path []int // reflect index
	*shape
}

// shapes remembers the shape of each type. It is a cache of pure results, so which
// goroutine fills it does not matter.
var shapes sync.Map // reflect.Type to *shape

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := newShape(t, map[reflect.Type]*shape{})
	shapes.Store(t, s)
	return s
}

var (
	timeType    = reflect.TypeFor[time.Time]()
	opaqueTypes = []reflect.Type{
		reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
		reflect.TypeFor[msgpack.CustomDecoder](), reflect.TypeFor[msgpack.Unmarshaler](),
	}
)

func newShape(t reflect.Type, open map[reflect.Type]*shape) *shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if s, ok := open[t]; ok {
		return s
	}
	s := &shape{size: int(t.Size())}
	open[t] = s
	if t == timeType {
		s.kind, s.times = kindTime, true
		return s
	}
	for _, o := range opaqueTypes {
		if reflect.PointerTo(t).Implements(o) {
			return s // it decodes itself; form is all we can check
		}
	}
	switch t.Kind() {
	case reflect.String:
		s.kind = kindString
	case reflect.Bool:
		s.kind = kindBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.kind, s.bits = kindInt, t.Bits()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.kind, s.bits = kindUint, t.Bits()
	case reflect.Float32, reflect.Float64:
		s.kind = kindFloat
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			s.kind = kindBytes
			break
		}
		s.kind, s.elem = kindList, newShape(t.Elem(), open)
		s.times = s.elem.times
	case reflect.Map:
		s.kind, s.elem = kindMap, newShape(t.Elem(), open)
		s.times = s.elem.times
	case reflect.Struct:
		s.kind, s.index = kindStruct, map[string]int{}
		s.addFields(t, nil, open)
		for _, name := range slices.Sorted(maps.Keys(s.index)) {
			s.sorted = append(s.sorted, s.index[name])
		}
	}
	return s
}

// addFields inlines embedded structs as both encoders do.
func (s *shape) addFields(t reflect.Type, prefix []int, open map[reflect.Type]*shape) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := append(append([]int(nil), prefix...), i)
		if f.Anonymous && name == "" {
			s.addFields(f.Type, path, open)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		s.index[name] = len(s.fields)
		s.fields = append(s.fields, field{name, path, newShape(f.Type, open)})
		s.times = s.times || s.fields[len(s.fields)-1].times
	}
}

// utcTimes turns all times in v to UTC, so that a message reads the same whatever
// the zone of who decoded it.
func utcTimes(v reflect.Value, s *shape) {
	if !s.times {
		return
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch s.kind {
	case kindTime:
		v.Set(reflect.ValueOf(v.Interface().(time.Time).UTC()))
	case kindStruct:
		for _, f := range s.fields {
			if f.times {
				utcTimes(v.FieldByIndex(f.path), f.shape)
			}
		}
	case kindList:
		for i := range v.Len() {
			utcTimes(v.Index(i), s.elem)
		}
	}
}
