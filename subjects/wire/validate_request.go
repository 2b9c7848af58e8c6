package wire

import "cmp"

// Validate checks an open.
func (m *Open) Validate() error {
	var c checks
	c.version(m.Version)
	c.optionalToken("name", m.Name, "a session's name")
	c.directory("cwd", m.Cwd)
	c.env("env", m.Env)
	c.labels("labels", m.Labels)
	c.limit("idle_ttl_ms", m.IdleTTLMS, -1, MaxIdleTTLMS)
	if m.Limits != nil {
		c.orZero("limits.live_processes", int64(m.Limits.LiveProcesses), 1, MaxProcesses)
		c.orZero("limits.retained_processes", int64(m.Limits.RetainedProcesses), 1, MaxProcesses)
	}
	c.limit("default_timeout_ms", m.DefaultTimeoutMS, -1, MaxTimeoutMS)
	c.shell("shell", m.Shell)
	return c.result()
}

// Validate checks a close.
func (m *CloseSession) Validate() error {
	var c checks
	c.version(m.Version)
	c.session(m.SessionRef)
	return c.result()
}

// Validate checks a list.
func (m *List) Validate() error {
	var c checks
	c.version(m.Version)
	switch {
	case !m.All:
		c.session(m.SessionRef)
	case m.SessionRef != SessionRef{}:
		c.fail("all", "a session is given too; give one of both")
	}
	return c.result()
}

// Validate checks a start.
func (m *Start) Validate() error {
	var c checks
	c.version(m.Version)
	c.session(m.SessionRef)
	c.optionalToken("execution_id", m.ExecutionID, "an execution id")
	c.command(&m.Command)
	return c.result()
}

// Validate checks a run.
func (m *Run) Validate() error {
	var c checks
	c.version(m.Version)
	c.session(m.SessionRef)
	c.optionalToken("execution_id", m.ExecutionID, "an execution id")
	c.command(&m.Command)
	c.limit("yield_ms", m.YieldMS, 0, MaxTimeoutMS)
	oneOf(&c, "on_timeout", m.OnTimeout, OnTimeoutKill, OnTimeoutBackground, OnTimeoutDetach)
	c.render(&m.Render)
	return c.result()
}

// render checks how a text is to be made.
func (c *checks) render(r *Render) {
	oneOf(c, "render.shape", r.Shape, ShapeHeadTail, ShapeHead, ShapeTail)
	oneOf(c, "render.arrange", r.Arrange, ArrangeSplit, ArrangeCombined, ArrangeConcatenated)
	c.orZero("render.max_bytes", int64(r.MaxBytes), MinRenderBytes, MaxRenderBytes)
	c.between("render.max_lines", int64(r.MaxLines), 0, MaxWhole)
	c.between("render.max_chars", int64(r.MaxChars), 0, MaxWhole)
	c.between("render.head_percent", int64(r.HeadPercent), 0, 99)
	c.between("render.tail_percent", int64(r.TailPercent), 0, 99)
	if head := cmp.Or(r.HeadPercent, 50); r.TailPercent+head > 100 {
		c.fail("render.tail_percent", "%d and the head's %d are more than 100", r.TailPercent, head)
	}
	if r.Shape != "" && r.Shape != ShapeHeadTail {
		if r.HeadPercent != 0 {
			c.fail("render.head_percent", "is of the shape head_tail; leave it out")
		}
		if r.TailPercent != 0 {
			c.fail("render.tail_percent", "is of the shape head_tail; leave it out")
		}
	}
	oneOf(c, "render.view", r.View, ViewText, ViewSafe, ViewBase64)
}

// Validate checks a prepare.
func (m *Prepare) Validate() error {
	var c checks
	c.version(m.Version)
	c.session(m.SessionRef)
	c.optionalToken("execution_id", m.ExecutionID, "an execution id")
	c.command(&m.Command)
	return c.result()
}

// Validate checks a cancel.
func (m *Cancel) Validate() error {
	var c checks
	c.version(m.Version)
	c.session(m.SessionRef)
	c.token("execution_id", m.ExecutionID, "the execution id of a start")
	return c.result()
}

// Validate checks a read.
func (m *Read) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	c.page(m)
	return c.result()
}

// page checks the options of a read.
func (c *checks) page(m *Read) {
	if m.Cursor != nil {
		c.between("cursor", *m.Cursor, 0, MaxWhole)
	}
	if m.Offset != nil {
		c.between("offset", *m.Offset, 0, MaxWhole)
	}
	if m.Cursor != nil && m.Offset != nil {
		c.fail("offset", "cursor is given too; give one of both")
	}
	c.orZero("max_bytes", int64(m.MaxBytes), MinPageBytes, MaxPageBytes)
	oneOf(c, "view", m.View, ViewText, ViewSafe, ViewBase64)
	c.limit("wait_ms", m.WaitMS, 0, MaxReadWaitMS)
	c.stream(m.Stream)
}

// Validate checks a wait.
func (m *Wait) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	oneOf(&c, "for", m.For, "end", "exit")
	c.limit("wait_ms", m.WaitMS, 0, MaxWaitMS)
	return c.result()
}

// Validate checks a status.
func (m *Status) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	return c.result()
}

// Validate checks a write, and the read that follows it: a bad option of the read
// writes nothing (A36). The read may leave out the process.
func (m *Write) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	switch {
	case len(m.Data) > 0 && m.Text != "":
		c.fail("text", "data is given too; give one of both")
	case len(m.Data) == 0 && m.Text == "" && !m.Close:
		c.fail("data", "missing; give data, text, or close")
	case len(m.Data) > MaxInputBytes:
		c.fail("data", "%s bytes; at most %s in one write", group(int64(len(m.Data))), group(MaxInputBytes))
	case len(m.Text) > MaxInputBytes:
		c.fail("text", "%s bytes; at most %s in one write", group(int64(len(m.Text))), group(MaxInputBytes))
	}
	if m.Offset != nil {
		c.between("offset", *m.Offset, 0, MaxWhole)
	}
	if m.Read != nil {
		c.prefix = "read."
		c.version(m.Read.Version)
		if p := m.Read.Process; p != "" && p != m.Process {
			c.fail("process", "%s is not the process that is written to; leave it out", quote(p))
		}
		if s := m.Read.InSession; s != "" && s != m.InSession {
			c.fail("in_session", "%s is not the session of the write; leave it out", quote(s))
		}
		c.page(m.Read)
	}
	return c.result()
}

// Validate checks a close_stdin.
func (m *CloseStdin) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	return c.result()
}

// Validate checks a resize. Both sides are needed: a size of 0 means nothing here.
func (m *Resize) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	c.between("rows", int64(m.Rows), 1, maxCells)
	c.between("cols", int64(m.Cols), 1, maxCells)
	return c.result()
}

// Validate checks a signal.
func (m *Signal) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	if m.Signal == "" {
		c.fail("signal", "missing; give a name such as INT, or a number")
	} else if _, err := ParseSignal(m.Signal); err != nil {
		c.fail("signal", "%s", err)
	}
	return c.result()
}

// Validate checks a terminate.
func (m *Terminate) Validate() error {
	var c checks
	c.version(m.Version)
	c.process(m.ProcessRef)
	oneOf(&c, "mode", m.Mode, "terminate", "kill", "interrupt")
	if m.GraceMS != nil {
		c.limit("grace_ms", *m.GraceMS, 0, MaxGraceMS)
	}
	c.text("by", m.By, MaxBy)
	return c.result()
}
