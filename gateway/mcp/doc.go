// Package mcp is the MCP front end: one tool, bash, over stdio and streamable HTTP, and
// the resources of the processes that it runs. It translates: what runs, waits and is
// remembered lives on a worker, and a front end that is killed takes nothing with it but
// the notices of its connections.
//
// # Connections and sessions
//
// A connection has one Limpet session, opened at the first use. Without a configured
// name it is the connection's own and is closed with it, with all that runs in it: at
// the end of stdin, at a DELETE, or after HTTPConfig.IdleTimeout without a request. With
// Config.Session.Name all connections share that session, and it is kept; its own idle
// time ends it. While a connection is open, its session is not idle.
//
// From protocol version 2026-07-28 on, streamable HTTP knows no connections, and nothing
// in a request tells one client from another. Such requests use a session by name: that
// of the header [SessionHeader] (prefixed, so that it can name no session that was not
// made this way), else HTTPConfig.Session, else Config.Session.Name. Who knows the name
// shares the session: its processes, their ids, its notices. Where there is no name,
// requests of that version are answered that only older ones are spoken, in which every
// client has a session of its own; clients come back with one of those by themselves.
// The header works with older versions too.
//
// Ids of another session's processes are answered as if there were none.
//
// # Calls
//
// Arguments are checked in full before anything happens: unknown fields, fields of
// another action, wrong types and wrong units are refused by name. A null counts as left
// out, because clients with strict schemas send all fields. A failure is a result with
// isError, with code, field and message in structuredContent.error; a nonzero exit code
// is none, unless Config.NonzeroIsError. Only a broken protocol (an unknown method or
// tool, a message that is none) is a JSON-RPC error, and never ends the connection.
//
// A call answers within 55 s, because most clients give up after 60: a run yields a
// handle, a wait says to call again. Where the client gave a progress token it is told
// every 5 s how long it takes and how much was written.
//
// The execution id of a command is the argument, else it is made of a nonce of the
// connection and the JSON-RPC id of the request, hashed: whoever sends the same request
// again in the same connection gets the same process. The nonce is fresh for each
// connection, since ids start anew in each. In requests without a connection, and in
// batches, ids of requests say nothing; there only the argument makes a command
// repeatable.
//
// A call that is cancelled before its handle was returned ends its command by the
// execution id, wherever that is, unless Config.OnCancel is keep. Cancelled it is by
// notifications/cancelled and, from 2026-07-28 on, by a dropped HTTP request; before,
// a dropped request is none, by the protocol, and may be sent again. After the handle,
// and for calls that only look, cancelling ends nothing. A connection that breaks with a
// call in work ends the command only as it closes its own session.
//
// # Notices
//
// A process that is left running (yielded or started) is remembered for the connection,
// as are those that a new connection finds running in a kept session. When one has ended
// the next result tells it, once, after its own text and in notices; not if a result
// showed the end already (wait, terminate, a read to the end, status, list …). With
// notify it is told as an update of the resource of its record and a change of the list.
// What still runs is told at the end of run, start and terminate, at most 8.
//
// # Bounds
//
// A connection has 256 calls in work; more wait 10 s and are then answered overloaded.
// It remembers 1,024 processes left running and has 256 subscriptions. A message on
// stdio has at most 16 MiB, one over HTTP HTTPConfig.BodyBytes. Connections over HTTP,
// with and without a session of their own, are HTTPConfig.Sessions; one more is answered
// 503. An update of a resource comes at most every 500 ms.
//
// # Concurrency
//
// All methods may be called from any goroutine. ServeStdio and Run block until their
// connection has ended; Close ends all of them and waits. Each call runs on a goroutine
// of the SDK.
package mcp
