package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxLine bounds one message on stdio; a longer one is skipped and refused.
	maxLine = 16 << 20
	// maxUnanswered is how many calls are read before one is answered; then the client
	// waits at its pipe.
	maxUnanswered = 4096
	// lastAnswers is how long, after the end of the input, calls in work may still answer.
	lastAnswers = time.Second
	// requestIDKey carries the JSON-RPC id of a request to its handler, which the SDK does
	// not tell. What a client sends under this name is dropped.
	requestIDKey = "Limpet-Request-Id"
)

// lines is the stdio transport: one JSON-RPC message a line. The SDK's own ends the
// connection at the first line that is no message; this one answers it and goes on, and
// has no goroutine between the pipe and the SDK.
type lines struct {
	in     *bufio.Reader
	inEnd  io.Closer
	out    io.WriteCloser
	queued []jsonrpc.Message // of a batch; touched by Read alone

	writing sync.Mutex // held while writing to out

	mu      sync.Mutex
	changed *sync.Cond // what follows
	calls   int        // guarded by mu; read and not answered
	stopped bool       // guarded by mu
}

func newLines(in io.ReadCloser, out io.WriteCloser) *lines {
	l := &lines{in: bufio.NewReaderSize(in, 64<<10), inEnd: in, out: out}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Connect is the transport's: there is one connection, this.
func (l *lines) Connect(context.Context) (sdk.Connection, error) { return l, nil }

// SessionID is empty: there is one session.
func (l *lines) SessionID() string { return "" }

// Read gives the next message.
func (l *lines) Read(context.Context) (jsonrpc.Message, error) {
	for {
		if len(l.queued) > 0 {
			m := l.queued[0]
			l.queued = l.queued[1:]
			l.count(m)
			return m, nil
		}
		line, err := l.line()
		if err != nil {
			l.lastCalls()
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if line[0] == '[' { // protocol 2025-03-26 has batches
			l.batch(line)
			continue
		}
		if m := l.message(line); m != nil {
			l.count(m)
			return m, nil
		}
	}
}

// count counts a call that is about to be handed on, once there is room for it.
func (l *lines) count(m jsonrpc.Message) {
	if r, ok := m.(*jsonrpc.Request); !ok || !r.IsCall() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.calls >= maxUnanswered && !l.stopped {
		l.changed.Wait()
	}
	l.calls++
}

// line reads one line, whatever its length; of a longer one than maxLine nothing is kept
// but its start, and it is refused.
func (l *lines) line() ([]byte, error) {
	b, err := l.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		if err != nil && len(bytes.TrimSpace(b)) > 0 && errors.Is(err, io.EOF) {
			return b, nil // the last line has no end
		}
		return b, err
	}
	long := append(make([]byte, 0, 256<<10), b...)
	for {
		b, err = l.in.ReadSlice('\n')
		if len(long) <= maxLine {
			long = append(long, b...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF): // the last line may have no end
			return nil, err
		case len(long) > maxLine:
			l.refuse(idOf(long[:64<<10]), jsonrpc.CodeInvalidRequest, fmt.Sprintf("a message may have %d bytes at most", maxLine))
			return nil, nil
		}
		return long, nil
	}
}

func (l *lines) batch(line []byte) {
	var raw []json.RawMessage
	if json.Unmarshal(line, &raw) != nil {
		l.refuse(nil, jsonrpc.CodeParseError, "no JSON")
		return
	}
	if len(raw) == 0 {
		l.refuse(nil, jsonrpc.CodeInvalidRequest, "an empty batch")
	}
	for _, r := range raw {
		if m := l.message(r); m != nil {
			l.queued = append(l.queued, m)
		}
	}
}

// message decodes one message, or refuses it and gives nil.
func (l *lines) message(b []byte) jsonrpc.Message {
	m, err := jsonrpc.DecodeMessage(b)
	if err != nil {
		if !json.Valid(b) {
			l.refuse(nil, jsonrpc.CodeParseError, "no JSON; a message is one line")
		} else {
			l.refuse(idOf(b), jsonrpc.CodeInvalidRequest, "no JSON-RPC 2.0 request, notification or response")
		}
		return nil
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		r.Extra = &sdk.RequestExtra{Header: http.Header{requestIDKey: {idText(r.ID)}}}
	}
	return m
}

// lastCalls waits, after the end of the input, for the answers of calls in work: who
// pipes requests in and closes wants to see them.
func (l *lines) lastCalls() {
	over := false // guarded by mu
	t := time.AfterFunc(lastAnswers, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		over = true
		l.changed.Broadcast()
	})
	defer t.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.calls > 0 && !l.stopped && !over {
		l.changed.Wait()
	}
}

// Write sends a message.
func (l *lines) Write(_ context.Context, m jsonrpc.Message) error {
	b, err := encodeLine(m)
	if err != nil {
		return err
	}
	if err := l.write(b); err != nil {
		return err
	}
	if _, ok := m.(*jsonrpc.Response); ok {
		l.mu.Lock()
		l.calls--
		l.mu.Unlock()
		l.changed.Signal() // there is one who waits: Read
	}
	return nil
}

func (l *lines) write(b []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.out.Write(b)
	return err
}

// encodeLine puts the result, which is JSON already, into its envelope as it is: the
// SDK's encoder would read and copy it once more.
func encodeLine(m jsonrpc.Message) ([]byte, error) {
	r, ok := m.(*jsonrpc.Response)
	if !ok || r.Error != nil || len(r.Result) == 0 || !r.ID.IsValid() {
		b, err := jsonrpc.EncodeMessage(m)
		return append(b, '\n'), err
	}
	id, err := json.Marshal(r.ID.Raw())
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(r.Result)+len(id)+40)
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), id...)
	b = append(append(b, `,"result":`...), r.Result...)
	return append(b, "}\n"...), nil
}

// refuse answers what is no message. An answer to nobody knows whom has the id null.
func (l *lines) refuse(id json.RawMessage, code int64, text string) {
	if id == nil {
		id = json.RawMessage("null")
	}
	b, _ := json.Marshal(struct { //nolint:errchkjson // plain types
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", id, &jsonrpc.Error{Code: code, Message: text}})
	_ = l.write(append(b, '\n')) // a broken pipe shows at the next answer
}

// stop ends the connection from our side.
func (l *lines) stop() {
	l.mu.Lock()
	first := !l.stopped
	l.stopped = true
	l.mu.Unlock()
	l.changed.Signal()
	if first {
		_ = l.inEnd.Close() // which ends the read, where it can be ended
	}
}

// Close is the SDK's end of the connection.
func (l *lines) Close() error {
	l.stop()
	return nil // out is the caller's
}

// idOf finds the id of a message that may be cut off: it stands before the parameters.
func idOf(b []byte) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil
		}
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return nil
		}
		if name == "id" && len(v) < 1000 && (v[0] == '"' || v[0] == '-' || v[0] >= '0' && v[0] <= '9') {
			return v
		}
	}
	return nil
}

// idText tells the id 1 from the id "1".
func idText(id jsonrpc.ID) string {
	switch v := id.Raw().(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case string:
		return strconv.Quote(v)
	}
	return ""
}

// requestID is what the transport says of a request's id.
func requestID(e *sdk.RequestExtra) string {
	if e == nil || len(e.Header[requestIDKey]) == 0 {
		return ""
	}
	return e.Header[requestIDKey][0]
}

// withIDs is a transport that tells the ids of requests.
type withIDs struct{ sdk.Transport }

// Connect connects.
func (t withIDs) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return idConn{c}, nil
}

type idConn struct{ sdk.Connection }

func (c idConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() && r.Extra == nil {
		r.Extra = &sdk.RequestExtra{Header: http.Header{requestIDKey: {idText(r.ID)}}}
	}
	return m, err
}
