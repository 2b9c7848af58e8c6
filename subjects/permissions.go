package subjects

import (
	"fmt"
	"time"
)

// Role is what a NATS user of an installation is for. Each has its permissions and no
// others; the zero value has none.
type Role string

// Roles. A name goes with each: the worker's, the tenant's, or that of the instance.
const (
	RoleWorker      Role = "worker"      // runs processes; writes only under its own name
	RoleGateway     Role = "gateway"     // serves the api, forwards, reconciles
	RoleTenant      Role = "tenant"      // calls the api and follows its own live events
	RoleObserver    Role = "observer"    // reads EVENTS and live, of all tenants
	RoleProvisioner Role = "provisioner" // alone creates, changes and removes streams
)

// Permissions are the subjects a user may use; everything else is refused by the
// server. They hold wildcards.
type Permissions struct {
	Publish   []string
	Subscribe []string
	// Responses is how many answers may be sent to each request received, within
	// ResponseAge; 0 none.
	Responses   int
	ResponseAge time.Duration
}

// responseAge is above the longest a request may wait for its answer: a run may last
// as long as a command may (24 h).
const responseAge = 24*time.Hour + time.Minute

// InboxPrefix is the prefix of a user's reply subjects. With a prefix of its own no
// user can read the answers of another.
func InboxPrefix(role Role, name string) string { return "_INBOX_" + string(role) + "_" + name }

// Permissions gives the permissions of a role.
//
// A read of one message (STREAM.MSG.GET) names its subject in the body, where the
// server cannot judge it: a worker can read what other workers stored. What it writes
// and what it lists is its own.
func (r Root) Permissions(role Role, name string) (Permissions, error) {
	if err := CheckToken("name", name); err != nil {
		return Permissions{}, err
	}
	var p Permissions
	switch role {
	case RoleWorker:
		p = r.workerPermissions(name)
	case RoleGateway:
		p = r.gatewayPermissions(name)
	case RoleTenant:
		p.Publish = []string{r.API(name, "*")}
		p.Subscribe = []string{r.Live(name), r.QuestionsAdmit(name)}
		p.Responses, p.ResponseAge = 1, responseAge
	case RoleObserver:
		p.Publish = append(r.read(StreamEvents), r.follow(StreamEvents, ">")...)
		// Acknowledgements of a durable consumer, such as an archive's.
		p.Publish = append(p.Publish, "$JS.API.STREAM.INFO."+r.Stream(StreamEvents), "$JS.ACK."+r.Stream(StreamEvents)+".>")
		p.Subscribe = []string{r.LiveAll()}
	case RoleProvisioner:
		p.Publish = []string{"$JS.API.INFO"}
		for _, s := range Streams() {
			for _, verb := range []string{"CREATE", "UPDATE", "DELETE", "PURGE", "INFO"} {
				p.Publish = append(p.Publish, "$JS.API.STREAM."+verb+"."+r.Stream(s))
			}
		}
	default:
		return Permissions{}, fmt.Errorf("role: %.80q is not known", string(role))
	}
	p.Subscribe = append(p.Subscribe, InboxPrefix(role, name)+".>")
	return p, nil
}

// workerPermissions: the worker's name stands in every subject that it writes, so the
// server holds it to its own. It asks for approvals and cannot answer them.
func (r Root) workerPermissions(w string) Permissions {
	p := Permissions{
		Publish: []string{
			r.join("out", Shard, "*", w, "*"),
			r.join("event", Shard, "*", w, "*", "*"),
			r.LivePhase("*", w, "*", "output"), // what is too much for EVENTS
			r.join("reg", Shard, w, ">"),
			r.join("audit", Shard, w, ">"),
			r.join("approval", Shard, w, "*", "*"),
			r.Boot(w),
			r.Lease(w),
			r.QuestionsAdmit("*"),
		},
		Subscribe:   []string{r.join("t", "*", "w", w, ">"), r.Control(w, "*")},
		Responses:   1,
		ResponseAge: responseAge,
	}
	p.Publish = append(p.Publish, r.read(StreamRecords, StreamBoot, StreamEvents, StreamOutput, StreamLeases, StreamApprovals)...)
	p.Publish = append(p.Publish, r.follow(StreamRecords, r.join("reg", Shard, w, ">"))...)
	p.Publish = append(p.Publish, r.follow(StreamApprovals, r.join("approval", Shard, w, ">"))...)
	return p
}

// gatewayPermissions: it reaches every worker, and writes what its reconciler writes for
// those that are gone: records, the last event of a process, the seal of an output.
func (r Root) gatewayPermissions(g string) Permissions {
	p := Permissions{
		Publish: []string{
			r.join("t", "*", "w", ">"),
			r.Control("*", "*"),
			r.RecordsAll(),
			r.EventsAll(),
			r.OutputAll(),
			r.join("audit", Shard, g, ">"),
		},
		Subscribe:   []string{r.APIAll(), r.LiveAll()},
		Responses:   1,
		ResponseAge: responseAge,
	}
	for _, s := range []string{StreamRecords, StreamBoot, StreamEvents, StreamOutput, StreamLeases, StreamApprovals} {
		p.Publish = append(p.Publish, r.read(s)...)
		p.Publish = append(p.Publish, r.follow(s, ">")...)
		p.Publish = append(p.Publish, "$JS.API.STREAM.INFO."+r.Stream(s))
	}
	direct := "$JS.API.DIRECT.GET." + r.Stream(StreamOutput)
	p.Publish = append(p.Publish, direct, direct+".>")
	return p
}

// read permits leader reads of streams.
func (r Root) read(streams ...string) []string {
	var out []string
	for _, s := range streams {
		out = append(out, "$JS.API.STREAM.MSG.GET."+r.Stream(s))
	}
	return out
}

// follow permits consumers of a stream with one filter, which the server compares with
// the one in the body; any filters when it is ">".
func (r Root) follow(stream, filter string) []string {
	s := r.Stream(stream)
	create := "$JS.API.CONSUMER.CREATE." + s + ".*." + filter
	if filter == ">" {
		create = "$JS.API.CONSUMER.CREATE." + s + ".>"
	}
	return []string{
		create,
		"$JS.API.CONSUMER.MSG.NEXT." + s + ".*",
		"$JS.API.CONSUMER.DELETE." + s + ".*",
		"$JS.API.CONSUMER.INFO." + s + ".*",
	}
}
