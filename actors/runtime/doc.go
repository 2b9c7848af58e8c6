// Package runtime starts one child tree and ends it with proof.
//
// A [Forker] owns one operating-system thread that forks everything, and the cgroup
// subtree that holds what it forked. [Forker.Start] turns a [Spec] into a [Child]: a
// session leader with its pipes or its terminal, in a cgroup leaf of its own where
// this host lets us have one. [Child.Wait] reports how the leader ended,
// [Child.Survivors] what it left behind, [Child.Stop] ends the tree: a first signal,
// a grace, KILL, and then evidence that nothing is left. [Child.Close] gives back
// descriptors and leaf.
//
// The package knows no NATS, decides nothing about commands, and copies no output:
// it hands out the parent ends. It runs on Linux only.
//
// # Evidence
//
// With a cgroup v2 leaf the kernel holds the list of members, and a process leaves it
// only by the hand of someone who may write to the cgroup file system (a root child
// may; a scan for the tag after the kill finds it, and the proof is then a scan).
// Without one, a tree is what /proc shows: descendants by parent, members of the
// leader's session or group, and carriers of the tag ([TagVariable]) in their
// environment. A daemon that clears its environment, starts a session and outlives all
// its ancestors is found by none of these; therefore a scan may say that nothing was
// found, never that nothing is left. At the end of this process [Forker.EndStrays] ends it:
// a subreaper's orphans are its children, whatever they have done.
//
// A pid is never trusted: signals go through pidfds opened before the identity was
// checked again.
//
// # Concurrency
//
// All exported methods may be called from any goroutine. Start waits its turn for the
// forking thread: at most 64 starts wait, further callers wait to be among them; Close
// of the Forker answers them with [ErrClosed]. Wait parks in the network poller, so a
// waiting child costs no thread; all callers of Wait get the same Exit. Signal and the
// reaping inside Wait share one lock, so that a signal never reaches a process that
// merely inherited the number. Stop and Survivors may run beside Wait and each other.
// Close comes after Wait; on a child that still lives it answers [ErrRunning] and does
// nothing. EndStrays may run beside all of them.
//
// Goroutines: the forking loop and the reaper of orphans, both ended and waited for by
// Forker.Close. A Child has none of its own.
//
// The process that uses this package becomes a child subreaper. Nothing in it may wait
// for any child (-1), and what it starts by other means stays in its own session and is
// left alone (no Setsid). It must not ignore signals with signal.Ignore, because ignored ones
// are inherited by every child.
package runtime
