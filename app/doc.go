// Package app wires the roles: a worker, a gateway, everything on one host (up), and
// everything in one process (local). Each has New or Start, Run, and an end; a binary
// and a test take the same path. Only cmd and chaos import it.
//
// Which operating-system processes there are: `limpet up` holds NATS and the gateway
// and keeps two children, the keeper and the worker, each the same binary re-executed.
// A kill -9 of up takes NATS and gateway; worker and keeper run on and rejoin the next
// up, which finds them by their locks. Who needs an up and finds none may start one in
// the background ([Ensure]); it ends by itself when nobody uses it. [MCP] serves agents
// from such an up, or with everything in its own process ([StartLocal]), as does a
// gateway without a NATS of somebody else ([Embedded]).
//
// Settings of all programs are flags of pflag; [Settings] gives those that the command
// line did not their values from the environment and one file.
//
// # Concurrency
//
// Run blocks until its context ends or a part fails, and returns when all parts have
// ended. Loops are ended by oklog/run; what they use is closed afterwards, in reverse
// order of its making.
package app
