package subjects

// Streams of later parts; the others stand in streams.go.
const (
	StreamLeases    = "LEASES"
	StreamApprovals = "APPROVALS"
	StreamAudit     = "AUDIT"
)

// Streams lists the streams of an installation.
func Streams() []string {
	return []string{StreamRecords, StreamBoot, StreamEvents, StreamOutput, StreamLeases, StreamApprovals, StreamAudit}
}

// StreamSubjects gives the filters of what a stream stores, nil for a stream that is
// not listed in [Streams]. No subject belongs to two streams.
func (r Root) StreamSubjects(stream string) []string {
	switch stream {
	case StreamRecords:
		return []string{r.RecordsAll()}
	case StreamBoot:
		return []string{r.BootAll()}
	case StreamEvents:
		return []string{r.EventsAll()}
	case StreamOutput:
		return []string{r.OutputAll()}
	case StreamLeases:
		return []string{r.LeasesAll()}
	case StreamApprovals:
		return []string{r.join("approval", Shard, ">")}
	case StreamAudit:
		return []string{r.join("audit", Shard, ">")}
	}
	return nil
}

// Lease is the subject of a worker's lease.
func (r Root) Lease(worker string) string { return r.join("lease", worker) }

// LeasesAll matches the leases of all workers.
func (r Root) LeasesAll() string { return r.join("lease", "*") }

// Approval is the subject of one pending approval, written by the worker that asks.
func (r Root) Approval(worker, tenant, id string) string {
	return r.join("approval", Shard, worker, tenant, id)
}

// ApprovalAnswer is where an approver answers it.
func (r Root) ApprovalAnswer(worker, tenant, id string) string {
	return r.join("approval", Shard, worker, tenant, id, "answer")
}

// Audit is the subject of the decisions that a writer (a worker or a gateway) made for
// a tenant.
func (r Root) Audit(writer, tenant, verb string) string {
	return r.join("audit", Shard, writer, tenant, verb)
}

// QuestionsAdmit is the service of a tenant's host that admits questions.
func (r Root) QuestionsAdmit(tenant string) string { return r.join("t", tenant, "questions", "admit") }

// LiveAll matches the live events of all tenants.
func (r Root) LiveAll() string { return r.join("live", ">") }
