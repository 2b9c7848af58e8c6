// Package output is the append log of one process: what it wrote, in the order it
// was read, kept within bounds, and read as often as anyone likes.
//
// Chunks arrive numbered. The log assigns neither numbers nor offsets, so that the
// worker that comes after a crash builds the same log again: first from the spool
// files on disk, then from the chunks the journal still holds. It never reads a
// process, never waits for a reader, and never loses count: total = kept + dropped,
// exactly.
//
// # Storage
//
// There is one format, the record (a fixed header and at most 4,096 bytes), and one
// unit of movement, the block (records back to back, at most 64 KiB). New records
// fill the newest block in memory; blocks older than the window go to the spool by
// one write each and keep their bytes, so a reader walks memory and disk alike.
// A process whose output fits the window touches no disk until [Log.Flush]; one that
// writes nothing costs no buffer, one that writes little 8 KiB, and none more than the
// window and four blocks.
//
// The spool is a directory of segment files. The first ones hold the head of the
// output and stay; the others are a ring, whose oldest is overwritten. Beyond the
// budget the middle goes first, whole segments at a time. Nothing is synced: a
// killed worker loses nothing, since the page cache has it; a power cut may lose
// what the kernel had not written, which recovery then reports as a gap.
//
// # Views
//
// Text of a chunk needs to know what the chunks before it left open: part of a
// character, part of an escape sequence, a carriage return. That state (6 bytes) is
// in the record, so any retained chunk is rendered by itself, and twice the same.
// Extra descriptors are streams like stdout: a record has a table of those that wrote
// something, which most logs lack. No text of a run has their output.
// A character belongs to the chunk in which it completes. Redraws (a carriage
// return, then the line again) collapse only inside a chunk in a [wire.Page], and
// over the whole text in [Log.Render].
//
// # Results
//
// [Log.Render] makes the text of a run in every shape that the systems have (C4, C5);
// [Text] and its like say the rest, so that no front end has words of its own but those
// in [TextOptions]. How a system's shape is said in a [wire.Render]:
//
//	A13  split          head_percent 40, tail_percent 40, max_bytes 100,000
//	L15  combined       tail, exact, max_lines 2,000, max_bytes 51,200
//	M12  split          tail, max_lines 2,000, max_bytes 51,200
//	P17  combined       exact, max_bytes 32,768, view text
//	S6   concatenated   head, exact, max_chars 30,000, max_bytes 1,000,000
//
// The limits are of what is shown, as theirs are. The line that says what was left out
// stands where NoticeAt and NoticeBytes of [wire.Rendered] say, so that a dialect puts
// its own in the place. A concatenated text is cut as one: its head may end in stdout
// and its tail begin there or in stderr.
//
// [Log.Search] finds lines of the safe view. A line is found as it stands in the end,
// or, where that does not match, as it stood before it was redrawn; once.
//
// # Concurrency
//
// A Log is safe for use by several goroutines; Append is called by one at a time.
// A mutex guards all state. It is held for copies of at most a block, and never
// over disk I/O: blocks go to disk in the goroutine that appends (or flushes),
// without the mutex, and readers open segment files themselves. So a slow disk
// slows Append, and a slow reader slows nobody. OnTrim is called by the goroutine
// that appends, flushes or removes; never concurrently, and never under the mutex.
package output
