package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// callLimit bounds every call: most clients give up after 60 s.
const callLimit = 54*time.Second + 800*time.Millisecond

// errLate is the cause of what was not answered in time.
var errLate = wire.Errorf(wire.CodeDeadlineExceeded, "no answer came within %v; what runs goes on", callLimit)

// reply is a result before it is put into words.
type reply struct {
	answer *answer
	failed bool // isError
	text   func(output.TextOptions) string
	others bool // what else runs is worth a line
}

// call is one tools/call.
type call struct {
	*args
	c       *conn
	request string // its JSON-RPC id; "" where it is not known
	report  *progress
}

// begin takes a place and bounds the time of a call; done gives back both.
func (c *conn) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	if c.ctx.Err() != nil {
		return nil, nil, errEnded
	}
	exit, err := c.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, release := context.WithTimeoutCause(ctx, callLimit, errLate)
	forget := context.AfterFunc(c.ctx, func() { cancel(errEnded) })
	return ctx, func() { forget(); release(); cancel(nil); exit() }, nil
}

// callTool serves the tool. Every failure but a broken protocol is a result that the
// model can read.
func (c *conn) callTool(ctx context.Context, req *sdk.CallToolRequest) (res *sdk.CallToolResult, _ error) {
	defer func() {
		if v := recover(); v != nil {
			c.log.Error("a call failed", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			res = failure(fmt.Errorf("panic: %v", v))
		}
	}()
	a, err := parseArgs(req.Params.Arguments)
	if err != nil {
		return failure(err), nil
	}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return failure(err), nil
	}
	defer done()
	b, err := c.session(ctx)
	if err != nil {
		return failure(late(ctx, err)), nil
	}
	k := &call{args: a, c: c, request: requestID(req.Extra), report: c.progress(ctx, b, req, a.process)}
	r, err := k.do(ctx, b)
	k.report.stop()
	if err != nil {
		return failure(late(ctx, err)), nil
	}
	return c.result(ctx, b, r)
}

// late gives an error its cause, where the call's own end is it.
func late(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (k *call) do(ctx context.Context, b *bound) (*reply, error) {
	switch k.action {
	case actRun:
		return k.run(ctx, b)
	case actStart:
		return k.start(ctx, b)
	case actRead:
		return k.read(ctx, b)
	case actWait:
		return k.waitEnd(ctx, b)
	case actWaitFor:
		return k.waitUntil(ctx, b)
	case actStatus:
		return k.status(ctx, b)
	case actWrite:
		return k.write(ctx, b)
	case actResize:
		return k.resize(ctx, b)
	case actSignal:
		return k.sendSignal(ctx, b)
	case actTerminate:
		return k.terminate(ctx, b)
	case actList:
		return k.list(ctx, b)
	case actSearch:
		return k.find(ctx, b)
	}
	return nil, wire.Errorf(wire.CodeInternal, "no such action")
}

// result puts a reply into words, with what ended meanwhile.
func (c *conn) result(ctx context.Context, b *bound, r *reply) (*sdk.CallToolResult, error) {
	ended, live := c.take(ctx, b)
	r.answer.Notices = ended
	if !r.others {
		live = nil
	}
	text := r.text(texts(live))
	for i := range ended {
		text = join(text, noticeText(&ended[i]))
	}
	return encodeResult(text, r.answer, r.failed), nil
}

func encodeResult(text string, a *answer, failed bool) *sdk.CallToolResult {
	data, err := a.encode()
	if err != nil {
		return failure(err)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}, StructuredContent: data, IsError: failed}
}

// failure is the result of a call that did not do what it was asked to.
func failure(err error) *sdk.CallToolResult {
	e := public(err)
	return encodeResult(errorText(e), &answer{Error: e}, true)
}

// rpcError is a failure where the protocol has no results that say so.
func rpcError(err error) error {
	e := public(err)
	code := int64(jsonrpc.CodeInternalError)
	if e.Code == wire.CodeInvalidArguments || e.Code == wire.CodeNotFound {
		code = jsonrpc.CodeInvalidParams
	}
	data, _ := json.Marshal(e) //nolint:errchkjson // details are of plain types
	return &jsonrpc.Error{Code: code, Message: e.Error(), Data: data}
}
