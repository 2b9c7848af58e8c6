package wire

// Verbs of the api. Each is the last token of a subject.
const (
	VerbOpen       = "open"
	VerbClose      = "close"
	VerbList       = "list"
	VerbPrepare    = "prepare"
	VerbRun        = "run"
	VerbStart      = "start"
	VerbCancel     = "cancel"
	VerbRead       = "read"
	VerbWait       = "wait"
	VerbWaitFor    = "wait_for"
	VerbSearch     = "search"
	VerbStatus     = "status"
	VerbWrite      = "write"
	VerbCloseStdin = "close_stdin"
	VerbResize     = "resize"
	VerbSignal     = "signal"
	VerbTerminate  = "terminate"
)

// Verbs lists the verbs of the api in the order of PROTOCOL.md.
func Verbs() []string {
	return []string{
		VerbOpen, VerbClose, VerbList, VerbPrepare, VerbRun, VerbStart, VerbCancel, VerbRead,
		VerbWait, VerbWaitFor, VerbSearch, VerbStatus, VerbWrite, VerbCloseStdin, VerbResize, VerbSignal, VerbTerminate,
	}
}

// Request is a message of the api. Validate returns nil or an *[Error] that names
// the first field at fault; it changes nothing.
type Request interface{ Validate() error }

// NewRequest gives the empty message of a verb, or nil for a verb not known here.
func NewRequest(verb string) Request {
	switch verb {
	case VerbOpen:
		return new(Open)
	case VerbClose:
		return new(CloseSession)
	case VerbList:
		return new(List)
	case VerbPrepare:
		return new(Prepare)
	case VerbRun:
		return new(Run)
	case VerbStart:
		return new(Start)
	case VerbCancel:
		return new(Cancel)
	case VerbRead:
		return new(Read)
	case VerbWait:
		return new(Wait)
	case VerbWaitFor:
		return new(WaitFor)
	case VerbSearch:
		return new(Search)
	case VerbStatus:
		return new(Status)
	case VerbWrite:
		return new(Write)
	case VerbCloseStdin:
		return new(CloseStdin)
	case VerbResize:
		return new(Resize)
	case VerbSignal:
		return new(Signal)
	case VerbTerminate:
		return new(Terminate)
	}
	return nil
}

// DecodeRequest decodes and validates the message of a verb: all that may be known
// about a request before it reaches an actor.
func DecodeRequest(verb, contentType string, data []byte) (Request, error) {
	r := NewRequest(verb)
	if r == nil {
		e := Invalid("verb", "%s is no verb", quote(verb))
		if near := Nearest(verb, Verbs()); near != "" {
			e.Message += "; the nearest is " + near
			e.Details = map[string]any{"nearest": near}
		}
		return nil, e
	}
	if err := Unmarshal(contentType, data, r, true); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return r, nil
}

// SessionOf gives the session that a request names, when its verb is one of a session.
func SessionOf(r Request) (SessionRef, bool) {
	switch m := r.(type) {
	case *CloseSession:
		return m.SessionRef, true
	case *List:
		return m.SessionRef, true
	case *Prepare:
		return m.SessionRef, true
	case *Run:
		return m.SessionRef, true
	case *Start:
		return m.SessionRef, true
	case *Cancel:
		return m.SessionRef, true
	}
	return SessionRef{}, false
}

// ProcessOf gives the process that a request names, when its verb is one of a process.
func ProcessOf(r Request) (string, bool) {
	switch m := r.(type) {
	case *Read:
		return m.Process, true
	case *Wait:
		return m.Process, true
	case *WaitFor:
		return m.Process, true
	case *Search:
		return m.Process, true
	case *Status:
		return m.Process, true
	case *Write:
		return m.Process, true
	case *CloseStdin:
		return m.Process, true
	case *Resize:
		return m.Process, true
	case *Signal:
		return m.Process, true
	case *Terminate:
		return m.Process, true
	}
	return "", false
}
