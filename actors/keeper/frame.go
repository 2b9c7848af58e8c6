package keeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// A frame is a fixed header and a msgpack body:
//
//	length of the body (4) | version (1) | kind (1) | descriptors (2) | request id (8)
//
// in network order. Descriptors travel with the first byte of their frame. Requests
// carry an id that their one answer repeats; events carry id 0.
const (
	protocolVersion = 1
	frameHeader     = 16
	maxBody         = 8 << 20 // a command with 62 inputs of 64 KiB
	maxDescriptors  = 96      // a process with 62 outputs; the kernel takes 253
)

// sendLimit bounds how long a frame may wait for a peer that does not read. Beyond it
// the connection ends: what the peer was to know is lost, and it must attach again.
const sendLimit = 5 * time.Second

type kind uint8

const (
	kindHello kind = iota + 1
	kindAttach
	kindDetach
	kindSpawn
	kindSignal
	kindStop
	kindCloseInput
	kindRelease
	kindJournals
	kindDropJournals

	kindReply   kind = 64
	kindError   kind = 65
	kindAdopted kind = 66
	kindExited  kind = 67
	kindGone    kind = 68
)

var errFrame = errors.New("broken frame")

// header is the fixed part of a frame.
type header struct {
	length, descriptors int
	kind                kind
	id                  uint64
}

func (h header) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.length))
	b = append(b, protocolVersion, byte(h.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(h.descriptors))
	return binary.BigEndian.AppendUint64(b, h.id)
}

// parseHeader reads the first frameHeader bytes of b.
func parseHeader(b []byte) (header, error) {
	h := header{
		length:      int(binary.BigEndian.Uint32(b)),
		kind:        kind(b[5]),
		descriptors: int(binary.BigEndian.Uint16(b[6:])),
		id:          binary.BigEndian.Uint64(b[8:]),
	}
	switch {
	case b[4] != protocolVersion:
		return h, wire.Errorf(wire.CodeUnsupportedVersion, "keeper protocol version %d is not spoken here, %d is", b[4], protocolVersion)
	case h.length > maxBody:
		return h, fmt.Errorf("%w: body of %d bytes, at most %d", errFrame, h.length, maxBody)
	case h.descriptors > maxDescriptors:
		return h, fmt.Errorf("%w: %d descriptors, at most %d", errFrame, h.descriptors, maxDescriptors)
	case h.kind == 0:
		return h, fmt.Errorf("%w: no kind", errFrame)
	}
	return h, nil
}

// frame is one received message. Whoever holds it owns its descriptors.
type frame struct {
	kind        kind
	id          uint64
	body        []byte
	descriptors []int
}

// decode reads the body, strictly.
func (f frame) decode(v any) error {
	if len(f.body) == 0 {
		return wire.Errorf(wire.CodeInvalidArguments, "message of kind %d has no body", f.kind)
	}
	return wire.Unmarshal("", f.body, v, true)
}

// closeDescriptors closes what nobody took.
func (f frame) closeDescriptors() {
	for _, fd := range f.descriptors {
		_ = unix.Close(fd)
	}
}

// link is a connection that carries frames. send may be used by any goroutine,
// receive by one.
type link struct {
	conn *net.UnixConn

	sending chan struct{} // held by the sender of a frame, one at a time
	limit   time.Duration // sendLimit, but for tests

	buf      []byte // received, not yet handed out
	oob      []byte
	received []int // descriptors that have arrived, for frames to come
}

func newLink(conn *net.UnixConn) *link {
	return &link{
		conn: conn, sending: make(chan struct{}, 1), limit: sendLimit,
		oob: make([]byte, unix.CmsgSpace(4*253)),
	}
}

// send writes one frame; v nil means no body. The descriptors stay the caller's. A
// frame that the peer does not take within sendLimit ends the connection. When ctx ends
// before the first byte, nothing has happened and its cause is returned; a frame that is
// cut in two by it ends the connection as well. Descriptors that the kernel refuses are
// an error of this frame only.
func (l *link) send(ctx context.Context, k kind, id uint64, v any, descriptors ...int) error {
	select {
	case l.sending <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.sending }()
	return l.sendHeld(ctx, k, id, v, descriptors...)
}

// sendHeld is send for who holds sending.
func (l *link) sendHeld(ctx context.Context, k kind, id uint64, v any, descriptors ...int) error {
	var body []byte
	if v != nil {
		var err error
		if body, err = wire.Marshal("", v); err != nil {
			return err
		}
	}
	if len(body) > maxBody {
		return wire.Errorf(wire.CodeInvalidArguments, "a message to the keeper has %d bytes, at most %d", len(body), maxBody)
	}
	if len(descriptors) > maxDescriptors {
		return fmt.Errorf("send %d descriptors: at most %d", len(descriptors), maxDescriptors)
	}
	b := header{length: len(body), kind: k, descriptors: len(descriptors), id: id}.append(make([]byte, 0, frameHeader+len(body)))
	b = append(b, body...)
	var oob []byte
	if len(descriptors) > 0 {
		oob = unix.UnixRights(descriptors...)
	}
	n, err := l.write(ctx, b, oob)
	switch {
	case err == nil:
		return nil
	case n == 0 && ctx.Err() != nil:
		return context.Cause(ctx)
	case n == 0 && len(descriptors) > 0 && refused(err):
		return fmt.Errorf("pass descriptors: %w", err)
	}
	l.close() // half a frame, or a peer that is stuck or gone
	return fmt.Errorf("write to the keeper socket: %w", err)
}

// refused tells an error about the descriptors of a frame, of which then nothing was
// sent, from one about the connection.
func refused(err error) bool {
	for _, e := range []error{unix.ETOOMANYREFS, unix.EBADF, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// write is bounded by ctx and by the limit. n is the count of bytes that are written.
func (l *link) write(ctx context.Context, b, oob []byte) (n int, err error) {
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.limit)); err != nil {
		return 0, err
	}
	if ctx.Done() != nil {
		fired := make(chan struct{})
		// Not by the deadline of ctx: the write could then end before ctx says that it has.
		stop := context.AfterFunc(ctx, func() { _ = l.conn.SetWriteDeadline(time.Unix(1, 0)); close(fired) })
		defer func() {
			if !stop() {
				<-fired
			}
		}()
	}
	n, _, err = l.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		var more int
		more, err = l.conn.Write(b[n:])
		n += more
	}
	return n, err
}

// receive gives the next frame. After an error the link is of no use.
func (l *link) receive() (frame, error) {
	if err := l.fill(frameHeader); err != nil {
		return frame{}, err
	}
	h, err := parseHeader(l.buf)
	if err != nil {
		return frame{}, err
	}
	if err := l.fill(frameHeader + h.length); err != nil {
		return frame{}, err
	}
	if len(l.received) < h.descriptors {
		return frame{}, fmt.Errorf("%w: %d of %d descriptors arrived", errFrame, len(l.received), h.descriptors)
	}
	f := frame{kind: h.kind, id: h.id, body: append([]byte(nil), l.buf[frameHeader:frameHeader+h.length]...)}
	f.descriptors = append([]int(nil), l.received[:h.descriptors]...)
	l.received = append(l.received[:0], l.received[h.descriptors:]...)
	l.buf = append(l.buf[:0], l.buf[frameHeader+h.length:]...)
	return f, nil
}

// fill reads until n bytes are there.
func (l *link) fill(n int) error {
	for len(l.buf) < n {
		if cap(l.buf)-len(l.buf) < 4096 {
			l.buf = append(make([]byte, 0, max(2*cap(l.buf), 8192)), l.buf...)
		}
		got, oobn, flags, _, err := l.conn.ReadMsgUnix(l.buf[len(l.buf):cap(l.buf)], l.oob)
		if oobn > 0 {
			if cerr := l.take(l.oob[:oobn]); cerr != nil {
				return cerr
			}
		}
		if err != nil {
			return err
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return fmt.Errorf("%w: descriptors were cut off", errFrame)
		}
		if got == 0 {
			return net.ErrClosed
		}
		l.buf = l.buf[:len(l.buf)+got]
	}
	return nil
}

// take keeps the descriptors of a control message.
func (l *link) take(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
		l.received = append(l.received, fds...)
	}
	if len(l.received) > 4*maxDescriptors {
		return fmt.Errorf("%w: %d descriptors without a frame", errFrame, len(l.received))
	}
	return nil
}

// close ends the connection; the receiver closes descriptors with drop.
func (l *link) close() { _ = l.conn.Close() }

// drop closes what has arrived and belongs to no frame. The receiving goroutine calls
// it when it is done.
func (l *link) drop() {
	for _, fd := range l.received {
		_ = unix.Close(fd)
	}
	l.received = nil
}
