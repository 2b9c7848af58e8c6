package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a command.
const (
	// MaxArgument is the kernel's limit for one argument or variable of a new
	// program (MAX_ARG_STRLEN, 32 pages) without its NUL.
	MaxArgument  = 131_071
	MaxArguments = 100_000
	// MaxArgumentsTotal bounds argv and env together, pointers included: the kernel
	// gives a new program a quarter of its stack limit, usually 2 MiB; 64 KiB stay
	// for the variables that the worker adds.
	MaxArgumentsTotal = 2<<20 - 64<<10
	MaxEnvName        = 255
	MaxDescription    = 200 // characters

	maxCells       = 65_535
	maxWindowBytes = 16 << 20
	minSpoolBytes  = 64 << 10
	maxSpoolBytes  = 2 << 30
)

// Validate checks a command. A field that is set and not built yet is refused with
// code not_built.
func (c *Command) Validate() error {
	var k checks
	k.command(c)
	return k.result()
}

func (c *checks) command(m *Command) {
	outer := c.prefix
	c.prefix += "command."
	defer func() { c.prefix = outer }()

	c.program(m)
	c.later(m)
	c.directory("cwd", m.Cwd)
	c.env("env", m.Env)
	if n := argumentsTotal(m); n > MaxArgumentsTotal {
		c.fail(programField(m), "arguments and environment take %s bytes; the kernel starts a program with at most %s. Pass the data on stdin or in a file",
			group(n), group(MaxArgumentsTotal))
	}
	oneOf(c, "stdin", m.Stdin, StdinNull, StdinPipe)
	if len(m.Input) > MaxInputBytes {
		c.fail("input", "%s bytes; at most %s. Set stdin to pipe and write the rest, or use a file", group(int64(len(m.Input))), group(MaxInputBytes))
	}
	if m.TTY != nil {
		c.orZero("tty.rows", int64(m.TTY.Rows), 1, maxCells)
		c.orZero("tty.cols", int64(m.TTY.Cols), 1, maxCells)
	}
	oneOf(c, "streams", m.Streams, StreamsSeparate, StreamsMerged)
	if m.TTY != nil && m.Streams == StreamsSeparate {
		c.fail("streams", "a terminal has one stream; leave streams out, or tty")
	}
	c.descriptors(m)
	c.limit("timeout_ms", m.TimeoutMS, -1, MaxTimeoutMS)
	c.limit("idle_timeout_ms", m.IdleTimeoutMS, 0, MaxTimeoutMS)
	c.limit("grace_ms", m.GraceMS, 0, MaxGraceMS)
	c.bounds(m)
	oneOf(c, "leftovers", m.Leftovers, LeftoversKill, LeftoversKeep)
	c.labels("labels", m.Labels)
	c.text("description", m.Description, 4*MaxDescription)
	if n := utf8.RuneCountInString(m.Description); n > MaxDescription {
		c.fail("description", "%d characters; at most %d", n, MaxDescription)
	}
}

// program checks argv, text and shell.
func (c *checks) program(m *Command) {
	switch {
	case len(m.Argv) > 0 && m.Text != "":
		c.fail("text", "argv is given too; give one of both")
	case len(m.Argv) > 0:
		c.argv(m.Argv)
		c.onlyWithText("shell", m.Shell != "")
		c.onlyWithText("login", m.Login)
		c.onlyWithText("capture_state", m.CaptureState)
	case m.Text == "":
		c.fail("text", "missing; give text (for a shell) or argv (a program and its arguments)")
	default:
		c.argument("text", m.Text)
		if strings.TrimSpace(m.Text) == "" {
			c.fail("text", "blank")
		}
	}
	c.shell("shell", m.Shell)
}

func (c *checks) onlyWithText(name string, set bool) {
	if set {
		c.fail(name, "argv runs without a shell; leave %s out, or give text instead of argv", name)
	}
}

// descriptors checks the extra descriptors.
func (c *checks) descriptors(m *Command) {
	if len(m.Descriptors) > 0 && m.TTY != nil {
		c.fail("descriptors", "a command at a terminal has none beside it; leave descriptors out, or tty")
	}
	var seen [MaxDescriptor + 1]bool
	for i := range m.Descriptors {
		d := &m.Descriptors[i]
		at := fmt.Sprintf("descriptors[%d]", i)
		switch {
		case d.Number < MinDescriptor || d.Number > MaxDescriptor:
			c.fail(at+".number", "%d is not within %d..%d", d.Number, MinDescriptor, MaxDescriptor)
			return
		case seen[d.Number]:
			c.fail(at+".number", "%d is there twice", d.Number)
		case d.Output && len(d.Input) > 0:
			c.fail(at+".input", "output is given too; give one of both")
		case !d.Output && len(d.Input) == 0:
			c.fail(at+".input", "missing; give input, the bytes to read, or output: true")
		case len(d.Input) > MaxInputBytes:
			c.fail(at+".input", "%s bytes; at most %s. Use a file", group(int64(len(d.Input))), group(MaxInputBytes))
		}
		seen[d.Number] = true
	}
}

// shell checks the name of a shell.
func (c *checks) shell(name, s string) {
	switch {
	case s == "", s == "bash", s == "sh":
	case s[0] != '/':
		c.fail(name, `%s is not "bash", "sh", or the absolute path of a shell`, quote(s))
	default:
		c.text(name, s, MaxPath)
	}
}

func (c *checks) argv(argv []string) {
	if len(argv) > MaxArguments {
		c.fail("argv", "%s elements; at most %s. Pass the list on stdin or in a file", group(int64(len(argv))), group(MaxArguments))
		return
	}
	if argv[0] == "" {
		c.fail("argv[0]", "empty; it names the program")
	}
	for i, a := range argv {
		if len(a) > MaxArgument || strings.IndexByte(a, 0) >= 0 || !utf8.ValidString(a) {
			c.argument(fmt.Sprintf("argv[%d]", i), a)
			return
		}
	}
}

func (c *checks) argument(name, s string) {
	if len(s) > MaxArgument {
		c.fail(name, "%s bytes; the kernel takes at most %s in one argument. Write the text to a file and run that",
			group(int64(len(s))), group(MaxArgument))
		return
	}
	c.text(name, s, MaxArgument)
}

// later refuses the fields of later versions.
func (c *checks) later(m *Command) {
	c.notBuilt("access", m.Access != nil)
	c.notBuilt("question_ids", len(m.QuestionIDs) > 0)
	if m.Confinement != "" && m.Confinement != ConfinementNone {
		c.refuse(CodeNotBuilt, "confinement", "%s is not built yet; leave it out or say %q", quote(m.Confinement), ConfinementNone)
	}
}

// env checks variables; name is the field that holds them.
func (c *checks) env(name string, env []EnvVar) {
	total := int64(0)
	for i := range env {
		v := &env[i]
		if !v.good() {
			c.variable(fmt.Sprintf("%s[%d]", name, i), v)
			return
		}
		total += int64(len(v.Name) + len(v.Value) + 2 + pointer)
	}
	if total > MaxArgumentsTotal {
		c.fail(name, "%s bytes; the kernel starts a program with at most %s", group(total), group(MaxArgumentsTotal))
	}
}

// good reports whether a variable needs no word; it keeps the names of fields off the
// usual path.
func (v *EnvVar) good() bool {
	return v.Name != "" && len(v.Name) <= MaxEnvName && strings.IndexByte(v.Name, '=') < 0 &&
		len(v.Value) <= MaxArgument-1-len(v.Name) && v.Secret == "" &&
		strings.IndexByte(v.Name, 0) < 0 && strings.IndexByte(v.Value, 0) < 0 &&
		utf8.ValidString(v.Name) && utf8.ValidString(v.Value)
}

// variable says what is wrong with one.
func (c *checks) variable(at string, v *EnvVar) {
	switch {
	case v.Name == "":
		c.fail(at+".name", "missing")
	case strings.Contains(v.Name, "="):
		c.fail(at+".name", "%s holds '='; the value goes into value", quote(v.Name))
	}
	c.text(at+".name", v.Name, MaxEnvName)
	c.notBuilt(at+".secret", v.Secret != "")
	c.text(at+".value", v.Value, MaxArgument-1-len(v.Name))
}

const pointer = 8 // bytes that the kernel counts for each argument

func argumentsTotal(m *Command) int64 {
	n := int64(len(m.Text))
	for _, a := range m.Argv {
		n += int64(len(a) + 1 + pointer)
	}
	for _, v := range m.Env {
		n += int64(len(v.Name) + len(v.Value) + 2 + pointer)
	}
	return n
}

func programField(m *Command) string {
	if len(m.Argv) > 0 {
		return "argv"
	}
	return "env"
}

// bounds checks limits, umask and output.
func (c *checks) bounds(m *Command) {
	if l := m.Limits; l != nil {
		c.between("limits.memory_bytes", l.MemoryBytes, 0, MaxWhole)
		c.between("limits.cpu_seconds", l.CPUSeconds, 0, MaxWhole)
		c.between("limits.open_files", l.OpenFiles, 0, MaxWhole)
		c.between("limits.processes", l.Processes, 0, MaxWhole)
		c.between("limits.file_bytes", l.FileBytes, 0, MaxWhole)
		c.between("limits.core_bytes", l.CoreBytes, 0, MaxWhole)
		c.between("limits.stack_bytes", l.StackBytes, 0, MaxWhole)
	}
	if m.Umask != nil && (*m.Umask < 0 || *m.Umask > 0o777) {
		c.fail("umask", "%d is not within 0..511 (octal 0..777)", *m.Umask)
	}
	o := m.Output
	if o == nil {
		return
	}
	c.orZero("output.window_bytes", o.WindowBytes, 4<<10, maxWindowBytes)
	if o.SpoolBytes != -1 {
		c.orZero("output.spool_bytes", o.SpoolBytes, minSpoolBytes, maxSpoolBytes)
	}
	if o.ShipBytes != -1 {
		c.orZero("output.ship_bytes", o.ShipBytes, MinShipBytes, MaxShipBytes)
	}
	c.between("output.head_bytes", o.HeadBytes, -1, maxSpoolBytes)
	if o.SpoolBytes > 0 && o.HeadBytes > o.SpoolBytes {
		c.fail("output.head_bytes", "%d is more than the spool of %d", o.HeadBytes, o.SpoolBytes)
	}
	if o.Lossless && o.SpoolBytes == -1 {
		c.fail("output.lossless", "needs a spool; leave spool_bytes out, or give it room")
	}
	c.between("output.kill_over_bytes", o.KillOverBytes, 0, MaxWhole)
}
