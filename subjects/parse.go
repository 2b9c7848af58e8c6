package subjects

import (
	"fmt"
	"strconv"
	"strings"
)

// Target is who a request of an incarnation's subscription addresses.
type Target struct {
	Tenant      string
	Worker      string
	Incarnation uint64
	Session     string // for a session verb
	Process     string // for a process verb
	Verb        string
}

// ParseWorker splits a subject made by WorkerOpen, Session or Process.
func (r Root) ParseWorker(subject string) (Target, error) {
	rest, ok := strings.CutPrefix(subject, r.prefix+".t.")
	if !ok {
		return Target{}, fmt.Errorf("subject %q is not under %s.t", subject, r.prefix)
	}
	t := strings.Split(rest, ".")
	if len(t) < 5 || t[1] != "w" {
		return Target{}, fmt.Errorf("subject %q addresses no worker", subject)
	}
	for _, tok := range t {
		if err := CheckToken("subject", tok); err != nil {
			return Target{}, err
		}
	}
	e, err := strconv.ParseUint(t[3], 10, 64)
	if err != nil || strconv.FormatUint(e, 10) != t[3] { // 007 is no name of 7
		return Target{}, fmt.Errorf("subject %q: incarnation %q is no number", subject, t[3])
	}
	g := Target{Tenant: t[0], Worker: t[2], Incarnation: e}
	switch {
	case len(t) == 5 && t[4] == "open":
		g.Verb = "open"
	case len(t) == 7 && t[4] == "s":
		g.Session, g.Verb = t[5], t[6]
	case len(t) == 7 && t[4] == "p":
		g.Process, g.Verb = t[5], t[6]
	default:
		return Target{}, fmt.Errorf("subject %q addresses nothing of a worker", subject)
	}
	return g, nil
}

// ParseAPI splits a subject made by API.
func (r Root) ParseAPI(subject string) (tenant, verb string, err error) {
	rest, ok := strings.CutPrefix(subject, r.prefix+".t.")
	t := strings.Split(rest, ".")
	if !ok || len(t) != 3 || t[1] != "api" || !ValidToken(t[0]) || !ValidToken(t[2]) {
		return "", "", fmt.Errorf("subject %q is no api call", subject)
	}
	return t[0], t[2], nil
}

// Record is what the subject of a record says.
type Record struct {
	Worker string // who wrote it
	Tenant string
	Kind   string
	Key    string
}

// ParseRecord splits a subject made by Record.
func (r Root) ParseRecord(subject string) (Record, error) {
	t, err := r.parse(subject, "reg", 6)
	if err != nil {
		return Record{}, err
	}
	return Record{Worker: t[2], Tenant: t[3], Kind: t[4], Key: t[5]}, nil
}

// Observed is what the subject of an event or of output says.
type Observed struct {
	Tenant  string
	Worker  string
	Process string
	Phase   string // of an event
}

// ParseEvent splits a subject made by Event.
func (r Root) ParseEvent(subject string) (Observed, error) {
	t, err := r.parse(subject, "event", 6)
	if err != nil {
		return Observed{}, err
	}
	return Observed{Tenant: t[2], Worker: t[3], Process: t[4], Phase: t[5]}, nil
}

// ParseLive splits the subject of a republished event.
func (r Root) ParseLive(subject string) (Observed, error) {
	t, err := r.parse(subject, "live", 5)
	if err != nil {
		return Observed{}, err
	}
	return Observed{Tenant: t[1], Worker: t[2], Process: t[3], Phase: t[4]}, nil
}

// ParseOutput splits a subject made by Output.
func (r Root) ParseOutput(subject string) (Observed, error) {
	t, err := r.parse(subject, "out", 5)
	if err != nil {
		return Observed{}, err
	}
	return Observed{Tenant: t[2], Worker: t[3], Process: t[4]}, nil
}

// parse splits a subject behind the prefix into n tokens, of which the first is word.
func (r Root) parse(subject, word string, n int) ([]string, error) {
	rest, ok := strings.CutPrefix(subject, r.prefix+".")
	t := strings.Split(rest, ".")
	if !ok || len(t) != n || t[0] != word {
		return nil, fmt.Errorf("subject %q is none of %s.%s", subject, r.prefix, word)
	}
	for _, tok := range t {
		if err := CheckToken("subject", tok); err != nil {
			return nil, err
		}
	}
	return t, nil
}
