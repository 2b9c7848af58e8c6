package mcp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// toolName is the one tool.
const toolName = "bash"

// description teaches a model the tool. Every client sends it with every conversation,
// so each sentence has to earn its place.
const description = `Runs bash commands and looks after them: their output is kept, and none is lost. Each is a new bash -c{carries}; stdin is empty, so pass -y and the like. Times are in seconds.
run (default): waits for the end. What takes over {max} s (or yield_s) goes on, and you get its process_id. {limit}
start: returns at once, for servers, watchers and long jobs.
wait: until it ends. wait_for: until a line matches pattern, a port listens, a path exists, or it is quiet. Both show new output. Use them instead of sleep and of polling.
read: output from offset (next_offset of an answer goes on). search: lines of all its output.
write: into what was started with close_stdin false or tty. resize. signal.
terminate: ends it and all that it started. status. list.
A nonzero exit code is an answer, no error. The end of what you left running is told with a later result.`

// carries is said where directory and environment are carried over.
const carries = " in the session's directory (cd and export carry over)"

// defaultTimeoutMS is a session's, where it is opened without one.
const defaultTimeoutMS = 120_000

// words fills in what is configured.
func (c *Config) words(s string) string {
	where, timeout := "", cmp.Or(c.Session.DefaultTimeoutMS, defaultTimeoutMS)
	if c.Session.CaptureState {
		where = carries
	}
	limit := fmt.Sprintf("It is ended after %s s unless timeout_s says otherwise.", plain(float64(timeout)/1000))
	if timeout < 0 {
		timeout, limit = 0, "It may take as long as it likes, unless timeout_s says otherwise."
	}
	return strings.NewReplacer("{carries}", where, "{max}", plain(c.YieldMax.Seconds()), "{limit}", limit,
		"{timeout}", plain(float64(timeout)/1000)).Replace(s)
}

// tool is what tools/list tells.
func (c *Config) tool() *sdk.Tool {
	yes := true
	return &sdk.Tool{
		Name: toolName, Title: "Shell", Description: c.words(description),
		InputSchema: json.RawMessage(c.words(string(inputSchema()))), OutputSchema: json.RawMessage(outputSchema),
		Annotations: &sdk.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &yes},
	}
}

// inputSchema is made of the same lines that arguments are checked with.
func inputSchema() json.RawMessage {
	var b strings.Builder
	fmt.Fprintf(&b, `{"type":"object","additionalProperties":false,"properties":{"action":{"type":"string","enum":%s,"default":"run"}`, list(actionNames))
	for i := range fields {
		f := &fields[i]
		fmt.Fprintf(&b, ",%q:{%s}", f.name, f.schema())
	}
	b.WriteString("}}")
	return json.RawMessage(b.String())
}

func (f *field) schema() string {
	s := `"type":"string"`
	switch f.kind {
	case kindBool:
		s = `"type":"boolean"`
	case kindInt:
		s = `"type":"integer","minimum":` + plain(f.low)
	case kindSeconds:
		s = `"type":"number","minimum":` + plain(f.low)
	case kindStrings:
		s = `"type":"array","items":{"type":"string"}`
	case kindMap:
		s = `"type":"object","additionalProperties":{"type":"string"}`
	}
	if f.high > 0 && (f.kind == kindSeconds || f.high < 1e6) {
		s += `,"maximum":` + plain(f.high)
	}
	if len(f.oneOf) > 0 {
		s += `,"enum":` + list(f.oneOf)
	}
	about := f.about
	if of := f.told(); of != "" {
		about = strings.TrimSuffix(of+": "+about, ": ")
	}
	if about != "" {
		text, _ := json.Marshal(about) //nolint:errchkjson // a string
		s += `,"description":` + string(text)
	}
	return s
}

// told is to which actions a field belongs, where its name does not say it.
func (f *field) told() string {
	switch f.of {
	case actRun, actSearch, actSignal:
		return f.of.String()
	}
	return ""
}

func list(words []string) string {
	b, _ := json.Marshal(words) //nolint:errchkjson // strings
	return string(b)
}

// outputSchema describes [answer]. A test holds results against it.
const outputSchema = `{"type":"object","properties":{` +
	`"process_id":{"type":"string"},"execution_id":{"type":"string"},` +
	`"state":{"type":"string","description":"starting, running, cancel_requested, completed, failed, cancelled, outcome_unknown, unreachable"},` +
	`"reason":{"type":"string"},"exit_code":{"type":"integer"},"signal":{"type":"string"},` +
	`"yielded":{"type":"boolean","description":"it still runs"},` +
	`"stdout":{"type":"string"},"stderr":{"type":"string"},` +
	`"stdout_omitted_bytes":{"type":"integer"},"stderr_omitted_bytes":{"type":"integer"},` +
	`"output":{"type":"string","description":"from offset to next_offset"},` +
	`"offset":{"type":"integer"},"next_offset":{"type":"integer"},"has_more":{"type":"boolean"},` +
	`"total_bytes":{"type":"integer"},"duration_s":{"type":"number"},` +
	`"met":{"type":"boolean"},"matches":{"type":"array","items":{"type":"object"}},"results":{"type":"array","items":{"type":"object"}},` +
	`"processes":{"type":"array","items":{"type":"object"}},` +
	`"notices":{"type":"array","items":{"type":"object"},"description":"ends of what was left running"},` +
	`"error":{"type":"object","properties":{"code":{"type":"string"},"message":{"type":"string"},"field":{"type":"string"}}}}}`
