package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/subjects"
)

var (
	session = SessionRef{Session: "s"}
	process = ProcessRef{Process: "p"}
)

func start(c Command) *Start { return &Start{SessionRef: session, Command: c} }

// run returns a start of a good command, changed.
func run(change func(*Command)) *Start {
	c := Command{Text: "true"}
	change(&c)
	return start(c)
}

func TestGoodRequestsPass(t *testing.T) {
	for name, r := range map[string]Request{
		"open, all defaults": &Open{},
		"open": &Open{
			Version: 1, Name: "a-b_C9", Cwd: "/", IdleTTLMS: -1, DefaultTimeoutMS: -1,
			Env: []EnvVar{{Name: "A"}}, Labels: map[string]string{"k": ""}, Limits: &SessionLimits{LiveProcesses: 2000},
		},
		"close by name":       &CloseSession{SessionRef: SessionRef{SessionName: "n"}},
		"list all":            &List{All: true},
		"start":               start(Command{Text: "true"}),
		"argv":                start(Command{Argv: []string{"ls", "", "-l"}}),
		"longest text":        start(Command{Text: strings.Repeat("x", MaxArgument)}),
		"most arguments":      start(Command{Argv: append([]string{"true"}, make([]string, MaxArguments-1)...)}),
		"a terminal":          start(Command{Text: "vi", TTY: &WindowSize{}, Stdin: StdinPipe, Streams: StreamsMerged}),
		"longest description": start(Command{Text: "true", Description: strings.Repeat("語", MaxDescription)}),
		"edges": start(Command{
			Text: "true", Shell: "/bin/dash", Cwd: "/tmp", TimeoutMS: MaxTimeoutMS, IdleTimeoutMS: MaxTimeoutMS, GraceMS: MaxGraceMS,
			Umask: new(0o777), Leftovers: LeftoversKeep, Confinement: ConfinementNone, Input: make([]byte, MaxInputBytes),
			Output: &OutputLimits{WindowBytes: 4096, SpoolBytes: 2 << 30, HeadBytes: -1}, Limits: &Limits{MemoryBytes: MaxWhole},
		}),
		"run":       &Run{SessionRef: session, Command: Command{Text: "true"}, YieldMS: 5, OnTimeout: OnTimeoutDetach, Render: Render{Shape: ShapeTail, MaxBytes: 1024, View: ViewText}},
		"prepare":   &Prepare{SessionRef: session, Command: Command{Text: "true"}},
		"cancel":    &Cancel{SessionRef: session, ExecutionID: "e"},
		"read":      &Read{ProcessRef: process, Cursor: new(int64(0)), MaxBytes: 4096, View: ViewBase64, WaitMS: 60_000, Stream: "stderr"},
		"wait":      &Wait{ProcessRef: process, For: "exit", WaitMS: 600_000},
		"wait_for":  &WaitFor{ProcessRef: process},
		"a pattern": &WaitFor{ProcessRef: process, For: "pattern", Pattern: "ready|listening", Stream: "stderr", Cursor: new(int64(3)), WaitMS: 600_000},
		"a port":    &WaitFor{Processes: []string{"a", "b"}, Mode: "all", For: "port", Port: 65_535},
		"a file":    &WaitFor{ProcessRef: process, For: "file", Path: "out/ready"},
		"quiet":     &WaitFor{ProcessRef: process, For: "quiet", QuietMS: 600_000, Stream: "stdout"},
		"search":    &Search{ProcessRef: ProcessRef{Process: "p", InSession: "s"}, Pattern: "err(or)?", MaxMatches: 1000, BeforeLines: 20},
		"literal":   &Search{ProcessRef: process, Pattern: "a[", Literal: true, IgnoreCase: true},
		"texts":     &Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{Arrange: ArrangeConcatenated, HeadPercent: 99, MaxChars: 30_000}},
		"status":    &Status{ProcessRef: process},
		"write":     &Write{ProcessRef: process, Data: make([]byte, MaxInputBytes), Offset: new(int64(0)), Read: &Read{}},
		"only end":  &Write{ProcessRef: process, Close: true},
		"NUL typed": &Write{ProcessRef: process, Text: "\x00"},
		"close":     &CloseStdin{ProcessRef: process},
		"resize":    &Resize{ProcessRef: process, WindowSize: WindowSize{1, 65535}},
		"signal":    &Signal{ProcessRef: process, Signal: "usr1"},
		"terminate": &Terminate{ProcessRef: process, Mode: "interrupt", GraceMS: new(int64(0)), By: "the user"},
	} {
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadRequestsNameTheirField(t *testing.T) {
	long := strings.Repeat("x", MaxArgument+1)
	for name, c := range map[string]struct {
		r     Request
		field string
		says  string
	}{
		"session missing":          {&CloseSession{}, "session", "missing"},
		"session and name":         {&CloseSession{SessionRef: SessionRef{"a", "b"}}, "session_name", "one of both"},
		"session with a dot":       {&CloseSession{SessionRef: SessionRef{Session: "a.b"}}, "session", "1 to 64"},
		"session name with NUL":    {&CloseSession{SessionRef: SessionRef{SessionName: "a\x00"}}, "session_name", "1 to 64"},
		"session over-long":        {&CloseSession{SessionRef: SessionRef{Session: strings.Repeat("a", 65)}}, "session", "1 to 64"},
		"list of nothing":          {&List{}, "session", "missing"},
		"list of both":             {&List{All: true, SessionRef: session}, "all", "one of both"},
		"open name":                {&Open{Name: "a b"}, "name", "1 to 64"},
		"open cwd relative":        {&Open{Cwd: "src"}, "cwd", "absolute"},
		"open cwd NUL":             {&Open{Cwd: "/a\x00b"}, "cwd", "NUL"},
		"open cwd long":            {&Open{Cwd: "/" + long}, "cwd", "4,095"},
		"open cwd not UTF-8":       {&Open{Cwd: "/\xff"}, "cwd", "UTF-8"},
		"open ttl negative":        {&Open{IdleTTLMS: -2}, "idle_ttl_ms", "-1"},
		"open ttl long":            {&Open{IdleTTLMS: MaxIdleTTLMS + 1}, "idle_ttl_ms", "604,800,000"},
		"open timeout":             {&Open{DefaultTimeoutMS: MaxTimeoutMS + 1}, "default_timeout_ms", "86,400,000"},
		"open live":                {&Open{Limits: &SessionLimits{LiveProcesses: -1}}, "limits.live_processes", "1..100,000"},
		"open retained":            {&Open{Limits: &SessionLimits{RetainedProcesses: 100_001}}, "limits.retained_processes", "100,000"},
		"open env":                 {&Open{Env: []EnvVar{{Name: "A"}, {}}}, "env[1].name", "missing"},
		"open labels":              {&Open{Labels: map[string]string{"": "x"}}, "labels", "empty"},
		"execution id":             {&Start{SessionRef: session, ExecutionID: "a/b", Command: Command{Text: "true"}}, "execution_id", "1 to 64"},
		"cancel without id":        {&Cancel{SessionRef: session}, "execution_id", "missing"},
		"process missing":          {&Status{}, "process", "missing"},
		"process foreign":          {&Status{ProcessRef: ProcessRef{Process: "a*"}}, "process", "1 to 64"},
		"no command":               {start(Command{}), "command.text", "missing"},
		"text and argv":            {start(Command{Text: "a", Argv: []string{"a"}}), "command.text", "one of both"},
		"blank":                    {start(Command{Text: " \t\n"}), "command.text", "blank"},
		"text NUL":                 {start(Command{Text: "echo a\x00b"}), "command.text", "NUL at byte 6"},
		"text not UTF-8":           {start(Command{Text: "echo \xff"}), "command.text", "UTF-8"},
		"text too long":            {start(Command{Text: long}), "command.text", "Write the text to a file"},
		"10 MB of text":            {start(Command{Text: strings.Repeat("x", 10<<20)}), "command.text", "10,485,760 bytes"},
		"no program":               {start(Command{Argv: []string{""}}), "command.argv[0]", "empty"},
		"argument NUL":             {start(Command{Argv: []string{"a", "b\x00"}}), "command.argv[1]", "NUL"},
		"argument too long":        {start(Command{Argv: []string{"a", long}}), "command.argv[1]", "131,071"},
		"argument not UTF-8":       {start(Command{Argv: []string{"a", "\xff"}}), "command.argv[1]", "UTF-8"},
		"too many arguments":       {start(Command{Argv: make([]string, MaxArguments+1)}), "command.argv", "100,000"},
		"too much in all":          {start(Command{Argv: strings.Split(strings.Repeat("x", 16)+strings.Repeat(","+long[:100_000], 21), ",")}), "command.argv", "2,031,616"},
		"env too much":             {run(func(c *Command) { c.Env = slicesOf(EnvVar{Name: "A", Value: long[:130_000]}, 16) }), "command.env", "2,031,616"},
		"shell with argv":          {start(Command{Argv: []string{"ls"}, Shell: "bash"}), "command.shell", "without a shell"},
		"shell relative":           {run(func(c *Command) { c.Shell = "zsh" }), "command.shell", "absolute path"},
		"shell NUL":                {run(func(c *Command) { c.Shell = "/bin/\x00" }), "command.shell", "NUL"},
		"cwd relative":             {run(func(c *Command) { c.Cwd = "./x" }), "command.cwd", "absolute"},
		"env name missing":         {run(func(c *Command) { c.Env = []EnvVar{{Value: "x"}} }), "command.env[0].name", "missing"},
		"env name with =":          {run(func(c *Command) { c.Env = []EnvVar{{Name: "A=b"}} }), "command.env[0].name", "'='"},
		"env name NUL":             {run(func(c *Command) { c.Env = []EnvVar{{Name: "A\x00"}} }), "command.env[0].name", "NUL"},
		"env name long":            {run(func(c *Command) { c.Env = []EnvVar{{Name: long[:256]}} }), "command.env[0].name", "255"},
		"env value NUL":            {run(func(c *Command) { c.Env = []EnvVar{{Name: "A", Value: "\x00"}} }), "command.env[0].value", "NUL"},
		"env value long":           {run(func(c *Command) { c.Env = []EnvVar{{Name: "A", Value: long[:MaxArgument-1]}} }), "command.env[0].value", "131,069"},
		"stdin":                    {run(func(c *Command) { c.Stdin = "pip" }), "command.stdin", "did you mean pipe"},
		"input":                    {run(func(c *Command) { c.Input = make([]byte, MaxInputBytes+1) }), "command.input", "65,536"},
		"tty rows":                 {run(func(c *Command) { c.TTY = &WindowSize{Rows: -1} }), "command.tty.rows", "65,535"},
		"tty cols":                 {run(func(c *Command) { c.TTY = &WindowSize{Cols: 65536} }), "command.tty.cols", "65,535"},
		"streams":                  {run(func(c *Command) { c.Streams = "both" }), "command.streams", "separate, merged"},
		"streams of a terminal":    {run(func(c *Command) { c.TTY, c.Streams = &WindowSize{}, StreamsSeparate }), "command.streams", "one stream"},
		"timeout negative":         {run(func(c *Command) { c.TimeoutMS = -2 }), "command.timeout_ms", "-1..86,400,000"},
		"timeout in microseconds":  {run(func(c *Command) { c.TimeoutMS = 180_000_000 }), "command.timeout_ms", "microseconds: did you mean 180000?"},
		"timeout in nanoseconds":   {run(func(c *Command) { c.TimeoutMS = 30_000_000_000 }), "command.timeout_ms", "nanoseconds: did you mean 30000?"},
		"timeout of 50 hours":      {run(func(c *Command) { c.TimeoutMS = 180_000_123 }), "command.timeout_ms", "more than 86,400,000 milliseconds"},
		"idle timeout":             {run(func(c *Command) { c.IdleTimeoutMS = -1 }), "command.idle_timeout_ms", "0..86,400,000"},
		"grace":                    {run(func(c *Command) { c.GraceMS = 60_001 }), "command.grace_ms", "60,000"},
		"limits":                   {run(func(c *Command) { c.Limits = &Limits{OpenFiles: -1} }), "command.limits.open_files", "0.."},
		"limit beyond JSON":        {run(func(c *Command) { c.Limits = &Limits{MemoryBytes: MaxWhole + 1} }), "command.limits.memory_bytes", "9,007,199,254,740,991"},
		"umask":                    {run(func(c *Command) { c.Umask = new(0o1000) }), "command.umask", "octal"},
		"umask negative":           {run(func(c *Command) { c.Umask = new(-1) }), "command.umask", "octal"},
		"leftovers":                {run(func(c *Command) { c.Leftovers = "kil" }), "command.leftovers", "did you mean kill"},
		"window":                   {run(func(c *Command) { c.Output = &OutputLimits{WindowBytes: 1} }), "command.output.window_bytes", "4,096"},
		"spool":                    {run(func(c *Command) { c.Output = &OutputLimits{SpoolBytes: -2} }), "command.output.spool_bytes", "-2"},
		"a small spool":            {run(func(c *Command) { c.Output = &OutputLimits{SpoolBytes: 5} }), "command.output.spool_bytes", "65,536"},
		"lossless without a spool": {run(func(c *Command) { c.Output = &OutputLimits{SpoolBytes: -1, Lossless: true} }), "command.output.lossless", "spool"},
		"head":                     {run(func(c *Command) { c.Output = &OutputLimits{HeadBytes: 2 << 20, SpoolBytes: 1 << 20} }), "command.output.head_bytes", "spool"},
		"kill over":                {run(func(c *Command) { c.Output = &OutputLimits{KillOverBytes: -1} }), "command.output.kill_over_bytes", "0.."},
		"labels too many":          {run(func(c *Command) { c.Labels = manyLabels(17) }), "command.labels", "at most 16"},
		"label key long":           {run(func(c *Command) { c.Labels = map[string]string{long[:64]: ""} }), "command.labels." + long[:64], "63"},
		"label value long":         {run(func(c *Command) { c.Labels = map[string]string{"k": long[:256]} }), "command.labels.k", "255"},
		"label value NUL":          {run(func(c *Command) { c.Labels = map[string]string{"k": "\x00"} }), "command.labels.k", "NUL"},
		"description long":         {run(func(c *Command) { c.Description = long[:201] }), "command.description", "at most 200"},
		"description NUL":          {run(func(c *Command) { c.Description = "a\x00" }), "command.description", "NUL"},
		"yield":                    {&Run{SessionRef: session, Command: Command{Text: "true"}, YieldMS: -1}, "yield_ms", "0.."},
		"on timeout":               {&Run{SessionRef: session, Command: Command{Text: "true"}, OnTimeout: "x"}, "on_timeout", "kill, background, detach"},
		"shape":                    {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{Shape: "middle"}}, "render.shape", "head_tail"},
		"render bytes":             {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{MaxBytes: 1}}, "render.max_bytes", "1,024"},
		"render lines":             {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{MaxLines: -1}}, "render.max_lines", "0.."},
		"render view":              {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{View: "raw"}}, "render.view", "text, safe"},
		"cursor":                   {&Read{ProcessRef: process, Cursor: new(int64(-1))}, "cursor", "0.."},
		"offset":                   {&Read{ProcessRef: process, Offset: new(int64(-1))}, "offset", "0.."},
		"cursor and offset":        {&Read{ProcessRef: process, Cursor: new(int64(1)), Offset: new(int64(1))}, "offset", "one of both"},
		"page small":               {&Read{ProcessRef: process, MaxBytes: 4095}, "max_bytes", "4,096..100,000"},
		"page large":               {&Read{ProcessRef: process, MaxBytes: 100_001}, "max_bytes", "4,096..100,000"},
		"view":                     {&Read{ProcessRef: process, View: "screen"}, "view", "text, safe, base64"},
		"read wait":                {&Read{ProcessRef: process, WaitMS: 60_001}, "wait_ms", "60,000"},
		"stream":                   {&Read{ProcessRef: process, Stream: "stdin"}, "stream", "stdout, stderr"},
		"wait for":                 {&Wait{ProcessRef: process, For: "exi"}, "for", "did you mean exit"},
		"wait long":                {&Wait{ProcessRef: process, WaitMS: 600_001}, "wait_ms", "600,000"},
		"wait negative":            {&Wait{ProcessRef: process, WaitMS: -1}, "wait_ms", "0.."},
		"wait_for what":            {&WaitFor{ProcessRef: process, For: "patern", Pattern: "x"}, "for", "did you mean pattern"},
		"wait_for nothing":         {&WaitFor{For: "exit"}, "process", "missing"},
		"wait_for both":            {&WaitFor{ProcessRef: process, Processes: []string{"p"}}, "processes", "one of both"},
		"wait_for mode of one":     {&WaitFor{ProcessRef: process, Mode: "any"}, "mode", "processes"},
		"wait_for mode":            {&WaitFor{Processes: []string{"p"}, Mode: "some"}, "mode", "any, all"},
		"wait_for twice":           {&WaitFor{Processes: []string{"p", "q", "p"}}, "processes[2]", "twice"},
		"wait_for no id":           {&WaitFor{Processes: []string{"p", "a b"}}, "processes[1]", "1 to 64"},
		"wait_for many":            {&WaitFor{Processes: make([]string, 33)}, "processes", "at most 32"},
		"wait_for of a session":    {&WaitFor{ProcessRef: ProcessRef{Process: "p", InSession: "a.b"}}, "in_session", "1 to 64"},
		"wait_for no pattern":      {&WaitFor{ProcessRef: process, For: "pattern"}, "pattern", "missing"},
		"wait_for stray pattern":   {&WaitFor{ProcessRef: process, Pattern: "x"}, "pattern", "for: pattern"},
		"wait_for bad pattern":     {&WaitFor{ProcessRef: process, For: "pattern", Pattern: "a("}, "pattern", "backslash"},
		"wait_for large pattern":   {&WaitFor{ProcessRef: process, For: "pattern", Pattern: strings.Repeat("a{1000}", 4)}, "pattern", "steps"},
		"wait_for long pattern":    {&WaitFor{ProcessRef: process, For: "pattern", Pattern: long[:1025]}, "pattern", "1,024"},
		"wait_for cursor":          {&WaitFor{ProcessRef: process, For: "pattern", Pattern: "a", Cursor: new(int64(-1))}, "cursor", "0.."},
		"wait_for two positions":   {&WaitFor{ProcessRef: process, For: "pattern", Pattern: "a", Cursor: new(int64(1)), Offset: new(int64(1))}, "offset", "one of both"},
		"wait_for bad offset":      {&WaitFor{ProcessRef: process, For: "pattern", Pattern: "a", Offset: new(int64(-1))}, "offset", "0.."},
		"wait_for stray offset":    {&WaitFor{ProcessRef: process, For: "file", Path: "x", Offset: new(int64(1))}, "offset", "for: pattern"},
		"wait_for stray waited":    {&WaitFor{ProcessRef: process, For: "exit", WaitedMS: 1}, "waited_ms", "for: quiet"},
		"wait_for long waited":     {&WaitFor{ProcessRef: process, For: "quiet", QuietMS: 1, WaitedMS: 600_001}, "waited_ms", "600,000"},
		"wait_for stray cursor":    {&WaitFor{ProcessRef: process, For: "exit", Cursor: new(int64(1))}, "cursor", "for: pattern"},
		"wait_for port":            {&WaitFor{ProcessRef: process, For: "port", Port: 65_536}, "port", "65,535"},
		"wait_for stray port":      {&WaitFor{ProcessRef: process, For: "file", Port: 80, Path: "x"}, "port", "for: port"},
		"wait_for no path":         {&WaitFor{ProcessRef: process, For: "file"}, "path", "missing"},
		"wait_for path NUL":        {&WaitFor{ProcessRef: process, For: "file", Path: "a\x00"}, "path", "NUL"},
		"wait_for no quiet":        {&WaitFor{ProcessRef: process, For: "quiet"}, "quiet_ms", "missing"},
		"wait_for quiet":           {&WaitFor{ProcessRef: process, For: "quiet", QuietMS: 600_001}, "quiet_ms", "600,000"},
		"wait_for stray stream":    {&WaitFor{ProcessRef: process, For: "port", Port: 1, Stream: "stdout"}, "stream", "pattern and quiet"},
		"wait_for long":            {&WaitFor{ProcessRef: process, WaitMS: 600_001}, "wait_ms", "600,000"},
		"search nothing":           {&Search{ProcessRef: process}, "pattern", "missing"},
		"search badly":             {&Search{ProcessRef: process, Pattern: "[z-a]"}, "pattern", "RE2"},
		"search far":               {&Search{ProcessRef: process, Pattern: "a", MaxMatches: 1001}, "max_matches", "1,000"},
		"search from two places":   {&Search{ProcessRef: process, Pattern: "a", Cursor: new(int64), Offset: new(int64)}, "offset", "one of both"},
		"search around":            {&Search{ProcessRef: process, Pattern: "a", AfterLines: 21}, "after_lines", "20"},
		"arrange":                  {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{Arrange: "both"}}, "render.arrange", "split, combined, concatenated"},
		"head percent":             {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{HeadPercent: 100}}, "render.head_percent", "0..99"},
		"tail percent":             {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{HeadPercent: 60, TailPercent: 41}}, "render.tail_percent", "more than 100"},
		"tail percent alone":       {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{TailPercent: 51}}, "render.tail_percent", "the head's 50"},
		"tail percent of a head":   {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{Shape: ShapeHead, TailPercent: 40}}, "render.tail_percent", "head_tail"},
		"head percent of a tail":   {&Run{SessionRef: session, Command: Command{Text: "true"}, Render: Render{Shape: ShapeTail, HeadPercent: 40}}, "render.head_percent", "head_tail"},
		"session's shell":          {&Open{Shell: "fish"}, "shell", "absolute path"},
		"write nothing":            {&Write{ProcessRef: process}, "data", "missing"},
		"write both":               {&Write{ProcessRef: process, Data: []byte("a"), Text: "a"}, "text", "one of both"},
		"write 4 MiB":              {&Write{ProcessRef: process, Data: make([]byte, 4<<20)}, "data", "65,536"},
		"write long text":          {&Write{ProcessRef: process, Text: long}, "text", "65,536"},
		"write offset":             {&Write{ProcessRef: process, Text: "a", Offset: new(int64(-1))}, "offset", "0.."},
		"write, bad read":          {&Write{ProcessRef: process, Text: "a", Read: &Read{Cursor: new(int64(-1))}}, "read.cursor", "0.."},
		"write, other process":     {&Write{ProcessRef: process, Text: "a", Read: &Read{ProcessRef: ProcessRef{Process: "q"}}}, "read.process", "leave it out"},
		"write, read version":      {&Write{ProcessRef: process, Text: "a", Read: &Read{Version: 2}}, "read.version", "speaks 1"},
		"resize rows":              {&Resize{ProcessRef: process, WindowSize: WindowSize{0, 80}}, "rows", "1..65,535"},
		"resize cols":              {&Resize{ProcessRef: process, WindowSize: WindowSize{24, 65536}}, "cols", "1..65,535"},
		"signal missing":           {&Signal{ProcessRef: process}, "signal", "missing"},
		"signal unknown":           {&Signal{ProcessRef: process, Signal: "STOPP"}, "signal", "not a signal"},
		"signal 65":                {&Signal{ProcessRef: process, Signal: "65"}, "signal", "1..64"},
		"mode":                     {&Terminate{ProcessRef: process, Mode: "stop"}, "mode", "terminate, kill, interrupt"},
		"terminate grace":          {&Terminate{ProcessRef: process, GraceMS: new(int64(-1))}, "grace_ms", "0.."},
		"by":                       {&Terminate{ProcessRef: process, By: long[:129]}, "by", "128"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.r.Validate()
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("passes: %v", err)
			}
			want := CodeInvalidArguments
			if strings.HasSuffix(c.field, "version") {
				want = CodeUnsupportedVersion
			}
			if e.Code != want || e.Field != c.field || !strings.HasPrefix(e.Message, c.field[:min(len(c.field), 20)]) || !strings.Contains(e.Message, c.says) {
				t.Errorf("%s: field %q", e, e.Field)
			}
			if len(e.Message) > 500 {
				t.Errorf("a message of %d bytes", len(e.Message))
			}
		})
	}
}

func slicesOf[T any](v T, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func manyLabels(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[strings.Repeat("k", i+1)] = ""
	}
	return m
}

func TestWhatIsNotBuiltIsRefusedByName(t *testing.T) {
	for field, change := range map[string]func(*Command){
		"command.access":        func(c *Command) { c.Access = &Access{} },
		"command.question_ids":  func(c *Command) { c.QuestionIDs = []string{"q"} },
		"command.env[0].secret": func(c *Command) { c.Env = []EnvVar{{Name: "A", Secret: "s"}} },
		"command.confinement":   func(c *Command) { c.Confinement = "workspace" },
	} {
		for _, r := range []Request{
			run(change),
			&Run{SessionRef: session, Command: run(change).Command},
			&Prepare{SessionRef: session, Command: run(change).Command},
		} {
			e, ok := errors.AsType[*Error](r.Validate())
			if !ok || e.Code != CodeNotBuilt || e.Field != field {
				t.Errorf("%T %s: %v", r, field, e)
			}
		}
	}
}

// Every verb: version 1 and none pass, any other is refused; the message is decoded
// into the type that the verb names.
func TestVersionsOfEveryVerb(t *testing.T) {
	for _, verb := range Verbs() {
		for _, v := range []int{-1, 2, 1 << 40} {
			r := NewRequest(verb)
			reflect.ValueOf(r).Elem().FieldByName("Version").SetInt(int64(v))
			e, ok := errors.AsType[*Error](r.Validate())
			if !ok || e.Code != CodeUnsupportedVersion || e.Field != "version" {
				t.Errorf("%s, version %d: %v", verb, v, e)
			}
		}
	}
	if NewRequest("exec") != nil {
		t.Error("an unknown verb has a message")
	}
}

func TestEveryRequestNamesItsTarget(t *testing.T) {
	for _, verb := range Verbs() {
		r := NewRequest(verb)
		v := reflect.ValueOf(r).Elem()
		if f := v.FieldByName("SessionRef"); f.IsValid() {
			f.Set(reflect.ValueOf(session))
		}
		if f := v.FieldByName("ProcessRef"); f.IsValid() {
			f.Set(reflect.ValueOf(process))
		}
		s, ofSession := SessionOf(r)
		p, ofProcess := ProcessOf(r)
		if ofSession == ofProcess && verb != VerbOpen || ofSession && s != session || ofProcess && p != "p" {
			t.Errorf("%s: session %v %v, process %v %v", verb, s, ofSession, p, ofProcess)
		}
	}
}

func TestDecodeRequestValidates(t *testing.T) {
	r, err := DecodeRequest(VerbRun, subjects.TypeJSON, []byte(`{"session_name":"work","command":{"text":"ls -l"}}`))
	if err != nil || r.(*Run).Command.Text != "ls -l" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = DecodeRequest(VerbResize, subjects.TypeJSON, []byte(`{"process":"p","rows":0,"cols":80}`))
	if e, ok := errors.AsType[*Error](err); !ok || e.Field != "rows" {
		t.Error(err)
	}
}

func TestNotes(t *testing.T) {
	for _, c := range []struct {
		c    Command
		says []string
	}{
		{Command{Text: "echo a && echo b"}, nil},
		{Command{Text: "echo a &amp;&amp; echo b"}, []string{"HTML-escaped"}},
		{Command{Text: "echo x 2&gt;/dev/null"}, []string{"HTML-escaped (it holds &gt;)"}},
		{Command{Argv: []string{"ls", "&&", "echo", "x"}}, []string{`argv[1] is "&&"`}},
		{Command{Argv: []string{"ls", "|", "a&lt;b"}}, []string{"HTML-escaped", `argv[1] is "|"`}},
		{Command{Argv: []string{"|"}}, nil},
		{Command{Text: "curl 'http://x/?a=1&b=2'"}, nil},
	} {
		got := c.c.Notes()
		if len(got) != len(c.says) {
			t.Errorf("%+v: %q", c.c, got)
			continue
		}
		for i, s := range c.says {
			if !strings.Contains(got[i], s) {
				t.Errorf("%+v: %q, want %q", c.c, got[i], s)
			}
		}
	}
}

func TestSignals(t *testing.T) {
	for s, want := range map[string]int{
		"INT": 2, "SIGINT": 2, "int": 2, "sigTerm": 15, "2": 2, "9": 9, "64": 64, "34": 34, "WINCH": 28, "KILL": 9,
		"": 0, "0": 0, "65": 0, "-9": 0, "+9": 0, "SIG": 0, "SIGSIGINT": 0, "INT ": 0, "9.0": 0, "0x9": 0, "99999999999999999999": 0,
	} {
		got, err := ParseSignal(s)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for n, want := range map[int]string{0: "", 2: "INT", 9: "KILL", 15: "TERM", 34: "34"} {
		if got := SignalName(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
	for n := 1; n <= MaxSignal; n++ {
		if got, err := ParseSignal(SignalName(n)); got != n || err != nil {
			t.Errorf("%d is %q is %d, %v", n, SignalName(n), got, err)
		}
	}
	for _, c := range [][3]int{{0, 0, 0}, {3, 0, 3}, {255, 0, 255}, {0, 9, 137}, {0, 15, 143}} {
		if got := ExitCode(c[0], c[1]); got != c[2] {
			t.Errorf("%v: %d", c, got)
		}
	}
}

// What good calls good and what variable has nothing to say about are the same.
func FuzzEnvironment(f *testing.F) {
	f.Add("A", "b", "")
	f.Add("A=", "\x00", "s")
	f.Add("\xff", strings.Repeat("x", MaxArgument), "")
	f.Fuzz(func(t *testing.T, name, value, secret string) {
		v := EnvVar{Name: name, Value: value, Secret: secret}
		var c checks
		c.variable("env[0]", &v)
		if v.good() != (c.err == nil) {
			t.Errorf("%+v: good %v, %v", v, v.good(), c.err)
		}
	})
}
