package output

import (
	"fmt"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects/wire"
)

func seq(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "%d\n", i)
	}
	return b.String()
}

func TestRenderHeadTail(t *testing.T) { // OUT 45
	l, w := newLog(t, Config{Dir: t.TempDir()})
	all := seq(50_000)
	w.write(wire.Stdout, all)
	w.write(wire.Stderr, "FATAL: missing key\n")
	for _, shape := range []wire.Shape{"", wire.ShapeHead, wire.ShapeTail} {
		for _, view := range []wire.View{wire.ViewText, wire.ViewSafe} {
			for _, m := range []wire.Render{
				{}, {MaxBytes: MinRender}, {MaxLines: 10}, {MaxLines: 1}, {MaxLines: 2000, MaxBytes: 51200}, {MaxBytes: MaxRender},
			} {
				m.Shape, m.View = shape, view
				t.Run(fmt.Sprintf("%+v", m), func(t *testing.T) { renderSeq(t, l, all, m) })
			}
		}
	}
}

func renderSeq(t *testing.T, l *Log, all string, m wire.Render) {
	out, errs := l.Render(m, false)
	if errs.Text != "FATAL: missing key\n" || errs.Truncated {
		t.Errorf("stderr %+v", errs)
	}
	if out.TotalBytes != int64(len(all)) {
		t.Errorf("total %d, want %d", out.TotalBytes, len(all))
	}
	if m.MaxBytes == MaxRender {
		if out.Text != all || out.Truncated {
			t.Error("a text within the limits is not whole")
		}
		return
	}
	limit := m.MaxBytes
	if limit == 0 {
		limit = DefaultRender
	}
	if len(out.Text)-out.NoticeBytes > limit || !out.Truncated {
		t.Errorf("%d bytes, truncated %v, limit %d", len(out.Text), out.Truncated, limit)
	}
	head, tail, ok := cutAtNotice(out.Text)
	if !ok {
		t.Fatalf("no notice in %q", out.Text)
	}
	if out.NoticeAt != len(head) || len(head)+len(tail)+out.NoticeBytes != len(out.Text) || out.NoticeBytes > 200 {
		t.Errorf("notice at %d of %d bytes, head of %d", out.NoticeAt, out.NoticeBytes, len(head))
	}
	if !strings.HasPrefix(all, head) || !strings.HasSuffix(all, tail) {
		t.Errorf("head or tail is not of the output")
	}
	if head != "" && !strings.HasSuffix(head, "\n") || tail != "" && !strings.HasSuffix(all, "\n"+tail) {
		t.Errorf("not cut at lines")
	}
	if (head != "") != (m.Shape != wire.ShapeTail && m.MaxLines != 1 || m.Shape == wire.ShapeHead) || (tail != "") != (m.Shape != wire.ShapeHead) {
		t.Errorf("shape %q has head of %d and tail of %d", m.Shape, len(head), len(tail))
	}
	shown := head + tail
	if out.OmittedBytes != int64(len(all)-len(shown)) || out.OmittedLines != int64(50_000-strings.Count(shown, "\n")) {
		t.Errorf("omitted %d bytes %d lines, shown %d of %d", out.OmittedBytes, out.OmittedLines, len(shown), len(all))
	}
	if m.MaxLines > 0 && m.MaxLines < 100 && strings.Count(shown, "\n") != m.MaxLines {
		t.Errorf("%d lines, want %d", strings.Count(shown, "\n"), m.MaxLines)
	}
	if m.MaxLines == 0 && len(shown) < limit*3/5 {
		t.Errorf("only %d bytes of %d used", len(shown), limit)
	}
	var from int64
	at := strings.LastIndex(out.Text[:len(out.Text)-len(tail)], "offset ")
	if _, err := fmt.Sscanf(out.Text[at:], "offset %d]", &from); err != nil || from != int64(len(head)) || from != out.OmittedOffset {
		t.Errorf("rest at %d, %d, want %d (%v)", from, out.OmittedOffset, len(head), err)
	}
}

// cutAtNotice takes the notice out of a text of lines of digits.
func cutAtNotice(s string) (head, tail string, ok bool) {
	head, rest, ok := strings.Cut(s, "[")
	if !ok {
		return "", "", false
	}
	_, tail, ok = strings.Cut(rest, "]\n")
	return head, tail, ok
}

func TestRenderLongLine(t *testing.T) {
	l, w := newLog(t, Config{Dir: t.TempDir()})
	w.write(wire.Stdout, "start "+strings.Repeat("語", 100_000)+" end")
	for _, view := range []wire.View{wire.ViewText, wire.ViewSafe} {
		for _, shape := range []wire.Shape{"", wire.ShapeHead, wire.ShapeTail} {
			out, _ := l.Render(wire.Render{View: view, Shape: shape}, false)
			if strings.Contains(out.Text, "\uFFFD") || out.EncodingLoss != 0 {
				t.Errorf("%s %s: a character was cut", view, shape)
			}
			if shown := len(out.Text) - out.NoticeBytes; shown < DefaultRender*3/4 || shown > DefaultRender {
				t.Errorf("%s %s: %d bytes", view, shape, len(out.Text))
			}
			if head := strings.HasPrefix(out.Text, "start 語"); head != (shape != wire.ShapeTail) {
				t.Errorf("%s %s: head %v", view, shape, head)
			}
			if tail := strings.HasSuffix(out.Text, "語 end"); tail != (shape != wire.ShapeHead) {
				t.Errorf("%s %s: tail %v", view, shape, tail)
			}
		}
	}
}

func TestRenderMergedInReadOrder(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "one\n")
	w.write(wire.Stderr, "two\n")
	w.write(wire.Stdout, "three")
	out, errs := l.Render(wire.Render{}, true)
	if out.Text != "one\ntwo\nthree" || errs.Text != "" || out.TotalBytes != 13 {
		t.Errorf("%+v %+v", out, errs)
	}
}

func TestRenderNamesGaps(t *testing.T) {
	l, w := newLog(t, Config{Limits: wire.OutputLimits{SpoolBytes: -1, WindowBytes: minWindow}})
	w.write(wire.Stdout, seq(2000))
	out, _ := l.Render(wire.Render{}, false)
	st := l.Stats()
	want := fmt.Sprintf("[%d bytes missing here: budget]\n", st.DroppedBytes)
	if !strings.HasPrefix(out.Text, want) || !strings.HasSuffix(out.Text, "\n2000\n") || !out.Truncated || out.OmittedBytes != st.DroppedBytes {
		t.Errorf("%.80q omitted %d, dropped %d", out.Text, out.OmittedBytes, st.DroppedBytes)
	}
}

func TestRenderBase64(t *testing.T) {
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "\x00\xff\x00\xff")
	out, _ := l.Render(wire.Render{View: wire.ViewBase64}, false)
	if out.Text != "AP8A/w==" || out.Truncated {
		t.Errorf("%+v", out)
	}
}

func TestRenderCountsLoss(t *testing.T) { // OUT 39
	l, w := newLog(t, Config{})
	w.write(wire.Stdout, "ok \x80\xfe bad\n")
	out, _ := l.Render(wire.Render{}, false)
	if out.Text != "ok \uFFFD\uFFFD bad\n" || out.EncodingLoss != 2 {
		t.Errorf("%+v", out)
	}
}

func TestCheckRenderNamesTheField(t *testing.T) {
	for field, r := range map[string]wire.Render{
		"shape": {Shape: "middle"}, "arrange": {Arrange: "both"}, "view": {View: "screen"}, "max_bytes": {MaxBytes: 10},
		"max_lines": {MaxLines: -1}, "max_chars": {MaxChars: -1}, "head_percent": {HeadPercent: 100}, "tail_percent": {TailPercent: 51},
	} {
		if err := CheckRender(r); fieldOf(err) != field {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
