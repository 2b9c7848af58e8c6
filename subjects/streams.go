package subjects

import "strings"

// Streams of an installation; see [Root.Stream].
const (
	StreamRecords = "RECORDS"
	StreamBoot    = "BOOT"
	StreamEvents  = "EVENTS"
	StreamOutput  = "OUTPUT"
)

// Stream is the name of a stream of this installation: the root in capitals, dots as
// underscores, then the name, as in LIMPET_V1_RECORDS.
func (r Root) Stream(name string) string {
	return strings.ToUpper(strings.ReplaceAll(r.prefix, ".", "_")) + "_" + name
}

// RecordsAll is what the RECORDS stream stores.
func (r Root) RecordsAll() string { return r.join("reg", Shard, ">") }

// EventsAll is what the EVENTS stream stores.
func (r Root) EventsAll() string { return r.join("event", Shard, ">") }

// OutputAll is what the OUTPUT stream stores.
func (r Root) OutputAll() string { return r.join("out", Shard, ">") }

// Republish maps EVENTS to live: event.K.T.W.P.PHASE to live.T.W.P.PHASE. Both are
// patterns of the server's subject mapping.
func (r Root) Republish() (source, target string) {
	return r.join("event", Shard, ">"), r.prefix + ".live.>"
}
