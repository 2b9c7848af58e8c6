package actors

import (
	"context"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// outputs is what shipping needs of the OUTPUT stream.
type outputs interface {
	// Append stores a message of a process behind the one of a sequence (0 none), and
	// returns its own. Errors are those of [bus.Conn.Append].
	Append(ctx context.Context, tenant, process string, msg []byte, behind uint64) (uint64, error)
	// Last returns the last message, from the leader; bus.ErrNotFound where there is none.
	Last(ctx context.Context, tenant, process string) (seq uint64, msg []byte, err error)
}

// outputStream is the OUTPUT stream as one worker may use it.
type outputStream struct {
	conn   *bus.Conn
	worker string
}

func (o outputStream) subject(tenant, process string) string {
	return o.conn.Root().Output(tenant, o.worker, process)
}

func (o outputStream) Append(ctx context.Context, tenant, process string, msg []byte, behind uint64) (uint64, error) {
	return o.conn.Append(ctx, o.subject(tenant, process), nil, msg, bus.ExpectLast(behind))
}

func (o outputStream) Last(ctx context.Context, tenant, process string) (uint64, []byte, error) {
	m, err := o.conn.Last(ctx, o.conn.Root().Stream(subjects.StreamOutput), o.subject(tenant, process))
	if err != nil {
		return 0, nil, err
	}
	return m.Seq, m.Data, nil
}
