// Package wire holds the messages of Limpet, their states, reasons and error codes,
// and the one codec that reads and writes them. PROTOCOL.md, one folder up, says the
// same in prose, for readers in any language.
//
// A message travels in three steps, and each refuses what the next may rely on:
// [Unmarshal] checks form (types, ranges, depth, unknown fields), Validate checks
// meaning (limits, enums, exclusive fields), and [Command.Canonical] gives the bytes
// that the digests cover. Every refusal is an *[Error] that names the field.
//
// The package knows no NATS and no processes.
//
// # Concurrency
//
// All functions are pure and may be called from any goroutine. Messages are plain
// values: who holds one owns it.
package wire
