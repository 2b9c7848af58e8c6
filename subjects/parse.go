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
	if err != nil {
		return Target{}, fmt.Errorf("subject %q: incarnation: %w", subject, err)
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
