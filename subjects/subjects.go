// Package subjects names every subject, stream and header of Limpet, and every id.
// It is the only package that builds or parses a subject: each token is validated
// here, because a NATS client sends nonsense as willingly as sense.
//
// The wire itself is specified in PROTOCOL.md beside this file.
//
// # Concurrency
//
// Everything here is a pure function or an immutable value.
package subjects

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// DefaultPrefix is the root of every subject, unless an installation chooses another.
const DefaultPrefix = "limpet.v1"

// Shard is the storage shard of everything until one is not enough.
const Shard = "0"

// Headers of a request.
const (
	HeaderContentType = "Content-Type"    // application/msgpack (default) or application/json
	HeaderTrace       = "traceparent"     // W3C trace context
	HeaderDeadline    = "Limpet-Deadline" // unix milliseconds by which an answer is of use
	HeaderVersion     = "Limpet-Version"  // schema version of the payload; 1
)

// Content types.
const (
	TypeMsgpack = "application/msgpack"
	TypeJSON    = "application/json"
)

// MaxToken is the length of the longest token, in bytes.
const MaxToken = 64

// ValidToken reports whether s may stand as one token of a subject: 1 to 64 letters,
// digits, '_' or '-' of ASCII. It runs for every token of every request.
func ValidToken(s string) bool {
	if len(s) == 0 || len(s) > MaxToken {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// CheckToken names the token that may not stand in a subject.
func CheckToken(name, s string) error {
	if !ValidToken(s) {
		return fmt.Errorf("%s: %.80q is not a name of 1 to 64 letters, digits, '_' or '-'", name, s)
	}
	return nil
}

// NewID returns 128 random bits as 22 URL-safe characters. It encodes no PID, path,
// owner or time (P25). It does not start with '-': it is a word of command lines, too,
// where that would be an option.
func NewID() string {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if id := base64.RawURLEncoding.EncodeToString(b[:]); id[0] != '-' {
			return id
		}
	}
}

// Root builds the subjects and stream names of one installation. The zero value is
// not usable; see [NewRoot].
type Root struct{ prefix string }

// NewRoot validates a prefix of one or more tokens of lower-case letters, digits and
// '-', such as "limpet.v1". Capitals and '_' are refused so that two installations
// never share the name of a stream (see [Root.Stream]). At most 128 bytes.
func NewRoot(prefix string) (Root, error) {
	for t := range strings.SplitSeq(prefix, ".") {
		if !ValidToken(t) || strings.ToLower(t) != t || strings.Contains(t, "_") {
			return Root{}, fmt.Errorf("prefix: %.80q is not made of lower-case letters, digits or '-'", t)
		}
	}
	if len(prefix) > maxPrefix {
		return Root{}, fmt.Errorf("prefix: %d bytes; at most %d", len(prefix), maxPrefix)
	}
	return Root{prefix}, nil
}

const maxPrefix = 128

// Default is the root with DefaultPrefix.
func Default() Root { return Root{DefaultPrefix} }

// Prefix returns the root itself.
func (r Root) Prefix() string { return r.prefix }

// join panics on a token that is not valid: callers validate what comes from outside
// with CheckToken, so one here is a fault of ours.
func (r Root) join(tokens ...string) string {
	for _, t := range tokens {
		if t != "*" && t != ">" && !ValidToken(t) {
			panic(fmt.Sprintf("subjects: invalid token %q", t))
		}
	}
	return r.prefix + "." + strings.Join(tokens, ".")
}

// API is what a tenant calls: limpet.v1.t.T.api.VERB.
func (r Root) API(tenant, verb string) string { return r.join("t", tenant, "api", verb) }

// APIAll is what gateways serve, in one queue group.
func (r Root) APIAll() string { return r.join("t", "*", "api", "*") }

// WorkerOpen opens a session at one incarnation of a worker.
func (r Root) WorkerOpen(tenant, worker string, e uint64) string {
	return r.join("t", tenant, "w", worker, strconv.FormatUint(e, 10), "open")
}

// Session addresses a session actor.
func (r Root) Session(tenant, worker string, e uint64, session, verb string) string {
	return r.join("t", tenant, "w", worker, strconv.FormatUint(e, 10), "s", session, verb)
}

// Process addresses a process actor.
func (r Root) Process(tenant, worker string, e uint64, process, verb string) string {
	return r.join("t", tenant, "w", worker, strconv.FormatUint(e, 10), "p", process, verb)
}

// WorkerAll is the one subscription of an incarnation.
func (r Root) WorkerAll(worker string, e uint64) string {
	return r.join("t", "*", "w", worker, strconv.FormatUint(e, 10), ">")
}

// Control addresses a worker's micro service: info, drain, stats.
func (r Root) Control(worker, verb string) string { return r.join("ctl", worker, verb) }

// Output is a process's subject in the OUTPUT stream.
func (r Root) Output(tenant, worker, process string) string {
	return r.join("out", Shard, tenant, worker, process)
}

// Event is a process's subject of one phase in the EVENTS stream.
func (r Root) Event(tenant, worker, process, phase string) string {
	return r.join("event", Shard, tenant, worker, process, phase)
}

// Live is what tenants may follow: EVENTS republished.
func (r Root) Live(tenant string) string { return r.join("live", tenant, ">") }

// LivePhase is where one phase of one process shows: what Event becomes, and what is
// too much for EVENTS.
func (r Root) LivePhase(tenant, worker, process, phase string) string {
	return r.join("live", tenant, worker, process, phase)
}

// LiveProcess follows one process.
func (r Root) LiveProcess(tenant, process string) string {
	return r.join("live", tenant, "*", process, "*")
}

// Kinds of records.
const (
	KindSession   = "session"
	KindExecution = "execution"
	KindProcess   = "process"
)

// Record is the subject of one record, written by one worker.
func (r Root) Record(worker, tenant, kind, key string) string {
	return r.join("reg", Shard, worker, tenant, kind, key)
}

// RecordFilter matches the record whichever worker wrote it.
func (r Root) RecordFilter(tenant, kind, key string) string {
	return r.join("reg", Shard, "*", tenant, kind, key)
}

// Boot is the subject of a worker's boot records.
func (r Root) Boot(worker string) string { return r.join("boot", worker) }

// BootAll matches the boot records of all workers.
func (r Root) BootAll() string { return r.join("boot", "*") }
