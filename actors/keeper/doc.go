// Package keeper is the small process beside a worker that forks, holds descriptors,
// enforces deadlines and reaps. It outlives the worker: kill -9 of a worker loses no
// process, no exit code and no byte of output.
//
// The keeper is the worker's own binary, executed again with the arguments
// "keeper DIR …" and almost no environment; [Main] is its main. One keeper serves one
// state directory, held by a lock. [Ensure] finds it or starts it, [Dial] connects a
// worker to it. It knows processes and bytes; sessions, records, texts and NATS are
// the worker's.
//
// # How bytes survive
//
// Output never passes through the memory of the worker on its way in. [Process.Pump]
// splices it from the pipe into a journal, a memfd that keeper and worker both hold,
// so that a byte is either still in the pipe or already in the journal, whenever the
// worker dies. The journal is a ring; its file position, moved by the kernel in the
// call that moves the bytes, says how much has been read. What has been spliced is then indexed in the
// arena, a shared mapping with one slot per process, and only what is indexed is
// handed to the sink. The next worker finds the same chunks with the same numbers.
// Bytes spliced and not yet indexed belong to the one stream the slot names as being
// read. A terminal cannot be spliced into a file at once; a pipe that the keeper also
// holds stands between. Captured descriptors are streams as stdout and stderr are. What a
// command writes to its state file ([Spawn.CaptureState]) is none: the keeper reads it at
// the exit and tells it with [Exited].
//
// While no worker lives nobody copies: pipes fill and children wait. The keeper goes
// on enforcing deadlines and keeps exits until they are released.
//
// # Who is served
//
// A worker attaches with its incarnation E; the keeper serves the highest E it has
// seen and refuses others. Before it hands anything to a newer worker it kills the
// older one and waits for its exit, so that two workers never read the same pipe. A
// worker that goes in good order says so and is not killed.
//
// # Concurrency
//
// A [Client] and a [Process] may be used by any number of goroutines. One [Pump] runs
// per process. Events reach the deliver function of [Client.Attach] on the goroutine
// that reads the connection, in the order of the keeper, per process exited before
// gone; it must only hand over. Events may arrive before the call that announces
// their process has returned: [Process.Exited] and [Process.Gone] tell what has been
// delivered. No call blocks on a process: it blocks on the keeper, at most until its
// context ends.
package keeper
