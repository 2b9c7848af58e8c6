// Package observer tells what happens to processes, and lets others follow it. It
// never carries a command, an environment or input, and never decides anything.
//
// A [Publisher] is the way out: each process has a [Feed], and what is put into it
// becomes a [wire.Event] in the EVENTS stream, which the server republishes to those
// who follow. Lifecycle observations (started, backgrounded, finished, resolved) are
// written at most once each, whoever writes, and are tried again through an outage.
// Output and state observations are for watching: they are coalesced, held in a
// mailbox of 32, and dropped and counted when it is full. Output goes to EVENTS
// within a byte share of its own and beyond that only to the live subjects.
//
// Every observation has a number, from 1; one that was dropped leaves its number
// unused, so that every loss is a visible gap. An incarnation that adopts a process
// cannot know how far its predecessor counted and goes on at E<<32+1.
//
// [Follow] is the way in.
//
// # Concurrency
//
// The methods of a Feed never block, never fail, and may be called from any goroutine;
// the order of observations is the order of calls. A few goroutines, owned by the
// Publisher, send for all processes; a process that is quiet costs a small struct.
// Close waits for them.
package observer
