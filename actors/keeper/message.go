package keeper

import "github.com/limpet-sh/limpet/subjects/wire"

// Bodies of the frames. Texts that the kernel takes as bytes travel as bytes: a path
// or a variable need not be UTF-8.

type helloReply struct {
	Incarnation uint64 `json:"incarnation"` // the highest that has attached
	PID         int    `json:"pid"`
}

type attachRequest struct {
	Incarnation uint64 `json:"incarnation"`
}

// attachReply comes after the adopted processes, with the arena and journals.
type attachReply struct {
	Processes int      `json:"processes"`
	Journals  []uint32 `json:"journals"`
}

type spawnRequest struct {
	Process string           `json:"process"`
	Path    []byte           `json:"path,omitempty"`
	Argv    [][]byte         `json:"argv"`
	Env     [][]byte         `json:"env,omitempty"`
	Dir     []byte           `json:"dir,omitempty"`
	Stdin   bool             `json:"stdin,omitempty"`
	TTY     *wire.WindowSize `json:"tty,omitempty"`
	Merged  bool             `json:"merged,omitempty"`
	// Descriptors and State are runtime.Spec's, which checks them.
	Descriptors []wire.Descriptor `json:"descriptors,omitempty"`
	State       bool              `json:"state,omitempty"`
	Umask       int               `json:"umask"`
	Limits      *wire.Limits      `json:"limits,omitempty"`
	TimeoutNS   int64             `json:"timeout_ns,omitempty"`
	GraceNS     int64             `json:"grace_ns,omitempty"`
	Backlog     int64             `json:"backlog,omitempty"`
	Meta        []byte            `json:"meta,omitempty"`
}

// processInfo describes a process to its worker: the answer to a spawn, and the body
// of adopted. Its descriptors follow in the order of the fields from
// Stdout to Journal.
type processInfo struct {
	Process   string `json:"process"`
	PID       int    `json:"pid"`
	StartedNS int64  `json:"started_ns"` // Unix
	Deadline  int64  `json:"deadline_ns,omitempty"`
	Slot      uint32 `json:"slot"`
	TTY       bool   `json:"tty,omitempty"`
	Backlog   int64  `json:"backlog,omitempty"`
	Meta      []byte `json:"meta,omitempty"`

	Stdout  bool   `json:"stdout,omitempty"`
	Stderr  bool   `json:"stderr,omitempty"`
	Stdin   bool   `json:"stdin,omitempty"`
	Master  bool   `json:"master,omitempty"`
	Outputs []int  `json:"outputs,omitempty"` // numbers of the descriptors that are captured
	Wide    bool   `json:"wide,omitempty"`    // of the slot: there were such at the spawn
	Between bool   `json:"between,omitempty"` // the pipe of a terminal: read end, write end
	Journal uint32 `json:"journal,omitempty"` // number + 1

	Exited *Exited `json:"exited,omitempty"`
	Gone   *Gone   `json:"gone,omitempty"`
}

type signalRequest struct {
	Process string `json:"process"`
	Signal  int    `json:"signal"`
}

type stopRequest struct {
	Process string      `json:"process"`
	Cause   wire.Reason `json:"cause,omitempty"`
	Mode    Mode        `json:"mode"`
	GraceNS int64       `json:"grace_ns,omitempty"`
}

// processRequest is the body of close input and release.
type processRequest struct {
	Process string `json:"process"`
}

type journalsRequest struct {
	Count int `json:"count"`
}

// journalList numbers journals: given with their descriptors, or dropped.
type journalList struct {
	Journals []uint32 `json:"journals"`
}

// leftovers is the mode behind [Process.KillLeftovers]: Terminate, once the command has
// ended.
const leftovers Mode = "leftovers"
