package bus

import (
	"encoding/json"
	"errors"
	"testing"
)

var acks = []struct {
	data string
	seq  uint64
	err  error // nil: none
	code int   // of an APIError
}{
	{`{"stream":"A","seq":7}`, 7, nil, 0},
	{`{"stream":"A", "domain":"d", "seq":18446744073709551615}`, 18446744073709551615, nil, 0},
	{`{"stream":"A","seq":3,"duplicate":true}`, 3, nil, 0},
	{`{ "seq" : 9, "stream" : "A" }`, 9, nil, 0},
	{`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"A","seq":0}`, 0, nil, 10071},
	{`{"error":{"code":503,"err_code":10077,"description":"x"}}`, 0, nil, 10077},
	{`{"stream":"A"}`, 0, ErrUnknownOutcome, 0},
	{`{"stream":"A","seq":-1}`, 0, ErrUnknownOutcome, 0},
	{`{"stream":"A","seq":1e3}`, 0, ErrUnknownOutcome, 0},
	{`{"stream":"A","seq":0}`, 0, ErrUnknownOutcome, 0},
	{``, 0, ErrUnknownOutcome, 0},
	{`hello`, 0, ErrUnknownOutcome, 0},
}

func TestAckSeq(t *testing.T) {
	for _, tt := range acks {
		seq, err := ackSeq([]byte(tt.data))
		api, ok := errors.AsType[*APIError](err)
		if seq != tt.seq || ok != (tt.code != 0) || ok && api.Code != tt.code || !ok && !errors.Is(err, tt.err) {
			t.Errorf("%s: %d, %v", tt.data, seq, err)
		}
	}
}

// FuzzAckSeq: what the fast way reads, the decoder reads too.
func FuzzAckSeq(f *testing.F) {
	for _, tt := range acks {
		f.Add([]byte(tt.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		seq, err := ackSeq(data)
		if err != nil {
			return
		}
		var ack struct{ Seq uint64 }
		if json.Unmarshal(data, &ack) == nil && ack.Seq != seq {
			t.Errorf("%q: %d, decoded %d", data, seq, ack.Seq)
		}
	})
}
