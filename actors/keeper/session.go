package keeper

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// maxSpawns bounds the starts under way for one worker; further requests wait.
const maxSpawns = 64

// session is one connection. Its goroutine reads; starts run beside it.
type session struct {
	keeper *keeper
	link   *link
	pid    int
	pidfd  int // until the session is a holder or ends; -1 then
	spawns chan struct{}
	done   chan struct{} // closed when nothing of it runs any more
}

// accept starts a session for each connection of our own user or root.
func (k *keeper) accept(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			k.log.Error("accept", "err", err)
			if !k.pause() {
				return
			}
			continue
		}
		s, err := k.open(conn)
		if err != nil {
			k.log.Warn("connection refused", "err", err)
			_ = conn.Close()
			continue
		}
		k.work.Go(s.run) // ends with the connection, which the worker or run closes
	}
}

// pause keeps a failing accept (no descriptors left) from spinning.
func (k *keeper) pause() bool {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	<-t.C
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.closing
}

func (k *keeper) open(conn *net.UnixConn) (*session, error) {
	cred, err := credentials(conn)
	if err != nil {
		return nil, err
	}
	pidfd, err := peerPidfd(conn, int(cred.Pid))
	if err != nil {
		return nil, err
	}
	s := &session{
		keeper: k, link: newLink(conn), pid: int(cred.Pid), pidfd: pidfd,
		spawns: make(chan struct{}, maxSpawns), done: make(chan struct{}),
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		_ = unix.Close(pidfd)
		return nil, errors.New("the keeper ends")
	}
	k.sessions[s] = struct{}{}
	return s, nil
}

func (s *session) run() {
	defer s.end()
	for {
		f, err := s.link.receive()
		if err != nil {
			s.refuseBroken(err)
			return
		}
		if len(f.descriptors) > 0 { // no request carries any
			f.closeDescriptors()
			s.refuseBroken(errFrame)
			return
		}
		if f.kind == kindSpawn {
			s.spawns <- struct{}{}
			s.keeper.work.Go(func() { // ends when the fork is answered; end waits for it
				defer func() { <-s.spawns }()
				s.spawn(f)
			})
			continue
		}
		if f.kind == kindAttach {
			s.answerAttach(f)
			continue
		}
		s.answer(f)
	}
}

// answerAttach is apart because a success is answered under the lock of the hand-over.
func (s *session) answerAttach(f frame) {
	var r attachRequest
	err := f.decode(&r)
	if err == nil {
		err = s.attach(f.id, r.Incarnation)
	}
	if err != nil {
		_ = s.reply(f.id, nil, nil, err)
	}
}

// refuseBroken tells a peer that speaks another protocol, or nonsense, before the end.
func (s *session) refuseBroken(err error) {
	if errors.Is(err, errFrame) || errors.Is(err, &wire.Error{Code: wire.CodeUnsupportedVersion}) {
		s.keeper.log.Warn("broken connection", "pid", s.pid, "err", err)
		_ = s.link.send(context.Background(), kindError, 0, wire.AsError(err))
	}
}

// end takes the session out of the keeper. A worker that did not say that it stops
// reading remains the holder of the pipes until it is dead.
func (s *session) end() {
	k := s.keeper
	s.link.close()
	s.link.drop()
	for range maxSpawns { // every start under way has been answered
		s.spawns <- struct{}{}
	}
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd)
	}
	k.mu.Lock()
	delete(k.sessions, s)
	if k.worker == s {
		k.worker = nil
	}
	k.mu.Unlock()
	close(s.done)
	k.wake()
}

// serves reports whether s is the worker.
func (k *keeper) serves(s *session) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.worker == s
}

// answer handles one request. Nothing here waits for a process.
func (s *session) answer(f frame) {
	reply, fds, err := s.handle(f)
	if f.id == 0 {
		if err != nil {
			s.keeper.log.Warn("request", "kind", f.kind, "err", err)
		}
		return
	}
	_ = s.reply(f.id, reply, fds, err)
}

// reply answers. An answer that cannot be sent is the end of the connection, which the
// reader sees as well.
func (s *session) reply(id uint64, reply any, fds []int, err error) error {
	kind := kindReply
	if err != nil {
		s.keeper.log.Debug("request refused", "err", err)
		kind, reply, fds = kindError, wire.AsError(err), nil
	}
	if err := s.link.send(context.Background(), kind, id, reply, fds...); err != nil {
		s.keeper.log.Debug("answer", "err", err)
		return err
	}
	return nil
}

func (s *session) handle(f frame) (reply any, fds []int, err error) {
	k := s.keeper
	switch f.kind {
	case kindHello:
		k.mu.Lock()
		defer k.mu.Unlock()
		return helloReply{Incarnation: k.incarnation, PID: os.Getpid()}, nil, nil
	}
	if !k.serves(s) {
		return nil, nil, wire.Errorf(wire.CodeUnavailable, "this connection is not the attached worker")
	}
	switch f.kind {
	case kindDetach:
		k.detach(s)
		return nil, nil, nil
	case kindSignal:
		return nil, nil, with(f, k.signal)
	case kindStop:
		return nil, nil, with(f, func(r stopRequest) error {
			c, err := k.child(r.Process)
			if err != nil {
				return err
			}
			return k.stop(c, r.Cause, r.Mode, time.Duration(max(0, r.GraceNS)))
		})
	case kindCloseInput, kindRelease:
		return nil, nil, with(f, func(r processRequest) error {
			c, err := k.child(r.Process)
			switch {
			case err != nil:
				return err
			case f.kind == kindRelease:
				k.release(c)
			default:
				c.closeInput()
			}
			return nil
		})
	case kindJournals:
		var list journalList
		err := with(f, func(r journalsRequest) (err error) {
			if r.Count < 1 || r.Count > maxDescriptors {
				return wire.Invalid("count", "1 to %d", maxDescriptors)
			}
			list.Journals, fds, err = k.moreJournals(r.Count)
			return err
		})
		return list, fds, err
	case kindDropJournals:
		return nil, nil, with(f, func(r journalList) error {
			k.dropJournals(r.Journals)
			return nil
		})
	}
	return nil, nil, wire.Errorf(wire.CodeInvalidArguments, "the keeper knows no request of kind %d", f.kind)
}

// with decodes the body of a request for do.
func with[T any](f frame, do func(T) error) error {
	var r T
	if err := f.decode(&r); err != nil {
		return err
	}
	return do(r)
}

func (k *keeper) child(process string) (*child, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.children[process]; c != nil && !c.released {
		return c, nil
	}
	return nil, wire.Errorf(wire.CodeNotFound, "the keeper holds no process %s", process)
}

func (k *keeper) signal(r signalRequest) error {
	c, err := k.child(r.Process)
	if err != nil {
		return err
	}
	if r.Signal < 1 || r.Signal > 64 {
		return wire.Invalid("signal", "%d is no signal", r.Signal)
	}
	return c.signal(syscall.Signal(r.Signal))
}
