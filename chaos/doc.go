// Package chaos is the proof: it runs whole installations, breaks them, and measures
// them. Cases from public bug reports, faults, and the benchmarks end to end are its
// tests; what they share is here.
//
// An installation is real: `up`, its keeper and its worker are processes of their own
// (the test binary re-executed), reached over the unix socket as any client does.
//
// # Concurrency
//
// A [Lab] may be used from several goroutines, but for its end.
package chaos
