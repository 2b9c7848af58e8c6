package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

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
	maxBody         = 4 << 20
	maxDescriptors  = 64
)

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

	sending sync.Mutex // one frame at a time; a peer that does not read makes senders wait

	buf      []byte // received, not yet handed out
	oob      []byte
	received []int // descriptors that have arrived, for frames to come
}

func newLink(conn *net.UnixConn) *link {
	return &link{conn: conn, oob: make([]byte, unix.CmsgSpace(4*253))}
}

// send writes one frame; v nil means no body. The descriptors stay the caller's.
func (l *link) send(k kind, id uint64, v any, descriptors ...int) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	return l.sendLocked(k, id, v, descriptors...)
}

func (l *link) sendLocked(k kind, id uint64, v any, descriptors ...int) error {
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
	n, _, err := l.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = l.conn.Write(b[n:])
	}
	if err != nil {
		return fmt.Errorf("write to the keeper socket: %w", err)
	}
	return nil
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
