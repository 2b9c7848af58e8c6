package wire

import (
	"reflect"
	"time"
)

// sample is a message with every field set, and its empty sibling.
type sample struct {
	name  string
	full  any
	empty any
}

// samples lists every message that travels or is stored.
func samples() []sample {
	return []sample{
		of[Open]("open"), of[Session]("session"), of[CloseSession]("close"), of[List]("list"),
		of[Processes]("processes"), of[Start]("start"), of[Run]("run"), of[Result]("result"),
		of[Read]("read"), of[Wait]("wait"), of[WaitFor]("wait_for"), of[Waited]("waited"), of[Search]("search"), of[Found]("found"), of[Status]("status"), of[Write]("write"),
		of[CloseStdin]("close_stdin"), of[Resize]("resize"), of[Signal]("signal"),
		of[Terminate]("terminate"), of[Cancel]("cancel"), of[Prepare]("prepare"), of[Prepared]("prepared"),
		of[Receipt]("receipt"), of[Page]("page"), of[Reply[Receipt]]("reply"), of[Event]("event"),
		of[SessionRecord]("session_record"), of[ExecutionRecord]("execution_record"),
		of[ProcessRecord]("process_record"), of[BootRecord]("boot_record"),
	}
}

func of[T any](name string) sample {
	n := 0
	full := new(T)
	fill(reflect.ValueOf(full).Elem(), &n)
	return sample{name, full, new(T)}
}

// fill sets every field to a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		if v.Type() == timeType {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, *n*1000, time.UTC)))
			return
		}
		for _, field := range v.Fields() {
			fill(field, n)
		}
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)) + "<&é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(uint64(*n))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte{0, 0xff, byte(*n)})
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, k := range []string{"b", "a"} {
			e := reflect.New(v.Type().Elem()).Elem()
			if e.Kind() == reflect.Interface {
				e.Set(reflect.ValueOf(k))
			} else {
				fill(e, n)
			}
			v.SetMapIndex(reflect.ValueOf(k), e)
		}
	default:
		panic("fill: " + v.Type().String())
	}
}
