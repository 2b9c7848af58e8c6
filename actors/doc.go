// Package actors is the runtime of a worker: the Worker, its Sessions and their
// Processes, each an actor.
//
// An actor is a goroutine with a bounded mailbox that alone touches its state.
// Supervision is a tree: worker → sessions → processes. Work that blocks (the store,
// the keeper, files) happens in goroutines that the actor owns and that report back
// as messages, so that a process answers while NATS is away. A process never moves,
// and its life is the table in table.go.
//
// The package never forks: it asks the keeper, through [Spawner]. It never renders:
// texts come from the output package. It decides nothing: every start goes through
// the safety package.
//
// # Concurrency
//
// [Worker.Run] starts everything and returns when, and only when, all of it has
// ended, but for looks at files that hang in the kernel (files.go). The bus calls the
// router on its own goroutine; the router only hands over. A mailbox that is full answers
// "overloaded" and starts nothing; what reaches an actor that has left is answered all the
// same. Messages of one sender to one actor arrive in order.
//
// A panic in a process actor ends that process (tree killed, record failed, event
// published) and nothing else; one in a session ends that session; one in a call that
// waits is that call's. A process that was forked is known to the worker until its end
// is recorded: that is why a start may take over a record that nobody here is known for.
package actors
