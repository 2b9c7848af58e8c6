package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestReplies(t *testing.T) {
	for _, ct := range contentTypes {
		b, err := EncodeReply(ct, &Session{Version: 1, ID: "s"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := DecodeReply[Session](ct, b)
		if err != nil || s.ID != "s" {
			t.Errorf("%s: %+v, %v", ct, s, err)
		}

		refusal := Invalid("session", "missing")
		refusal.Details = map[string]any{"n": int64(3), "list": []any{"a", true, nil}, "sub": map[string]any{"x": "y"}}
		b, err = EncodeReply[Session](ct, nil, fmt.Errorf("open: %w", refusal))
		if err != nil {
			t.Fatal(err)
		}
		_, err = DecodeReply[Session](ct, b)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeInvalidArguments || e.Field != "session" || fmt.Sprint(e.Details) != fmt.Sprint(refusal.Details) {
			t.Errorf("%s: %#v", ct, err)
		}

		b, err = EncodeReply[Session](ct, nil, errors.New("open /secret/path: permission denied"))
		if err != nil || strings.Contains(string(b), "secret") {
			t.Errorf("%s: a fault of ours leaks: %q, %v", ct, b, err)
		}
		_, err = DecodeReply[Session](ct, b)
		if !errors.Is(err, &Error{Code: CodeInternal}) {
			t.Errorf("%s: %v", ct, err)
		}

		b, err = Marshal(ct, &Reply[Session]{Version: 2, Result: &Session{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = DecodeReply[Session](ct, b); !errors.Is(err, &Error{Code: CodeUnsupportedVersion}) {
			t.Errorf("%s: version 2: %v", ct, err)
		}
		b, err = EncodeReply[Session](ct, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = DecodeReply[Session](ct, b); !errors.Is(err, &Error{Code: CodeInternal}) {
			t.Errorf("%s: neither result nor error: %v", ct, err)
		}
		if _, err = DecodeReply[Session](ct, []byte{0xc1}); err == nil {
			t.Errorf("%s: garbage", ct)
		}
	}
}

func TestAsError(t *testing.T) {
	if AsError(nil) != nil {
		t.Error("nil")
	}
	if e := AsError(context.DeadlineExceeded); e.Code != CodeDeadlineExceeded {
		t.Error(e)
	}
	if e := AsError(fmt.Errorf("x: %w", Errorf(CodeDenied, "no"))); e.Code != CodeDenied {
		t.Error(e)
	}
}

func TestTimesAreUTCWhereverTheyWereMade(t *testing.T) {
	zone := time.FixedZone("east", 3600)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, zone)
	for _, ct := range contentTypes {
		b, err := Marshal(ct, &Receipt{CreatedAt: at, StartedAt: &at, Page: &Page{Chunks: []Chunk{{At: at}}}})
		if err != nil {
			t.Fatal(err)
		}
		var r Receipt
		if err := Unmarshal(ct, b, &r, false); err != nil {
			t.Fatal(err)
		}
		for _, got := range []time.Time{r.CreatedAt, *r.StartedAt, r.Page.Chunks[0].At} {
			if got.Location() != time.UTC || !got.Equal(at) {
				t.Errorf("%s: %v", ct, got)
			}
		}
	}
}
