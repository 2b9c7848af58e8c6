// Package bus is the NATS plumbing: it connects, asks, answers, publishes, and keeps
// what must outlive a process in JetStream. It is the only importer of nats.go, and it
// knows nothing of processes.
//
// Three rules hold everywhere. Nothing is hidden: while a connection is away, a
// publish fails at once and no buffer pretends otherwise. Nothing is guessed: a write
// whose acknowledgement did not arrive is [ErrUnknownOutcome], and whoever wrote reads
// back. Nothing is lost in silence: what was dropped is logged, counted in
// [Conn.Losses] and told to Config.OnLoss.
//
// # Concurrency
//
// All methods of [Conn] may be called from any goroutine. Calls that talk to the server
// block until its answer, the context's end, or the loss of the connection; Serve and
// Subscribe take one round trip, AppendAsync waits only for room in its window, Publish
// for nothing. A handler given to Serve or Subscribe runs on the one goroutine of its
// subscription, in order of arrival: it may only hand over. Callbacks (OnLoss) run on
// one goroutine of the connection, in order; a slow one delays the next callback, never
// a message.
package bus
