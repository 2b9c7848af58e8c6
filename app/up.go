package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/oklog/run"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/gateway"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/bus/embedded"
)

// WorkerName of the one worker of a host.
const WorkerName = "local"

// AdoptionWindow is how long the keeper of a host waits for the next worker before it
// ends all processes.
const AdoptionWindow = 10 * time.Minute

// UpOptions of everything on one host.
type UpOptions struct {
	State State
	// Exe is this binary, by default /proc/self/exe; its "worker" and "keeper" are run.
	Exe string
	// SyncAlways makes every acknowledged write survive a power loss.
	SyncAlways bool
	// Memory keeps the streams in memory: they end with the server.
	Memory bool
	// UntilIdle ends it when, for so long, no client was connected and no session lived;
	// 0: never.
	UntilIdle time.Duration
	Logger    *slog.Logger
	// OnUp is called when the host serves; it must not block. It may be nil.
	OnUp func(*Discovery)
}

// Up holds NATS and the gateway, keeps the keeper and the worker alive, and leaves a
// discovery file by which other commands find it. It returns when ctx has ended and
// everything with it, or with an error when a part cannot go on.
func Up(ctx context.Context, o UpOptions) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Exe == "" {
		o.Exe = "/proc/self/exe"
	}
	if err := os.MkdirAll(o.State.Worker(), 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	removeDead(o.Logger)
	h, err := startHost(ctx, o, "")
	if err != nil {
		return err
	}
	defer h.close()
	// Both files name passwords. A kill -9 leaves them to the next up, which writes them anew.
	if err := writeJSON(o.State.workerFile(), h.workerFile(o.State)); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer os.Remove(o.State.workerFile())
	var g run.Group
	{
		ctx, cancel := context.WithCancel(ctx)
		g.Add(func() error { return h.announce(ctx, o) }, func(error) { cancel() })
	}
	{
		ctx, cancel := context.WithCancel(ctx)
		g.Add(func() error { return h.serve(ctx, o) }, func(error) { cancel() })
	}
	if o.UntilIdle > 0 {
		ctx, cancel := context.WithCancel(ctx)
		g.Add(func() error { return h.untilIdle(ctx, o.UntilIdle) }, func(error) { cancel() })
	}
	return g.Run()
}

// lastAnswers is how long the gateway outlives the worker: whoever waited for a process
// that ended with us asks once more, and is answered from the record.
const lastAnswers = 150 * time.Millisecond

// serve runs the gateway around the keeper and the worker, until ctx ends or the
// gateway fails.
func (h *host) serve(ctx context.Context, o UpOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var err error // of the gateway; read after ended
	ended := make(chan struct{})
	go func() { // ended by stop
		defer close(ended)
		defer cancel()
		err = h.gateway.Run(answering)
	}()
	supervised := superviseAll(ctx, o)
	last := time.NewTimer(lastAnswers)
	defer last.Stop()
	select {
	case <-last.C:
	case <-ended:
	}
	stop()
	<-ended
	return errors.Join(supervised, err)
}

// superviseAll keeps the keeper and the worker alive. At the end the worker goes
// first: it ends the sessions, for which it needs the keeper.
func superviseAll(ctx context.Context, o UpOptions) error {
	k := &supervised{
		name: "keeper", pidFile: o.State.keeperPID(), logFile: o.State.keeperLog(),
		lock: filepath.Join(o.State.Worker(), "keeper.lock"), up: make(chan struct{}), log: o.Logger,
		start: func(ctx context.Context, log *os.File) (*exec.Cmd, error) {
			return keeper.Ensure(ctx, keeper.Config{Dir: o.State.Worker(), Exe: o.Exe, Window: AdoptionWindow, Log: log})
		},
	}
	w := &supervised{
		name: "worker", pidFile: o.State.workerPID(), logFile: o.State.workerLog(),
		lock: filepath.Join(o.State.Worker(), "worker.lock"), up: make(chan struct{}), log: o.Logger,
		start: startChild(o.Exe, "worker", "--file", o.State.workerFile()),
	}
	keeping, stopKeeper := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan error, 1)
	go func() { kept <- k.run(keeping) }() // ended by stopKeeper, below
	select {
	case <-k.up:
	case <-ctx.Done():
	}
	err := w.run(ctx)
	stopKeeper()
	return errors.Join(err, <-kept)
}

// host is NATS with its streams, and the gateway.
type host struct {
	server      *embedded.Server
	conns       []*bus.Conn
	gateway     *gateway.Gateway
	gatewayConn *bus.Conn // one of conns
	log         *slog.Logger
}

// startHost starts NATS in the state directory, or without one in memory, with a
// directory in temp.
func startHost(ctx context.Context, o UpOptions, temp string) (_ *host, err error) {
	h := &host{log: o.Logger}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	cfg := embedded.Config{SyncAlways: o.SyncAlways, TempDir: temp, Logger: o.Logger}
	if o.State != "" {
		cfg.Dir, cfg.UnixSocket, cfg.ReservedSocket = o.State.Store(), o.State.Socket(), o.State.workerSocket()
	}
	if h.server, err = embedded.Start(cfg); err != nil {
		if locked, ok := errors.AsType[*embedded.LockedError](err); ok {
			return nil, fmt.Errorf("limpet is up already in %s (process %d); stop it first, or give another --state", o.State, locked.PID)
		}
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	prov, err := h.connect(ctx, subjects.RoleProvisioner, "up")
	if err != nil {
		return nil, err
	}
	if err := prov.EnsureStreams(ctx, bus.StreamOptions{Memory: o.Memory || o.State == ""}); err != nil {
		return nil, fmt.Errorf("streams: %w", err)
	}
	if h.gatewayConn, err = h.connect(ctx, subjects.RoleGateway, "up"); err != nil {
		return nil, err
	}
	if h.gateway, err = gateway.New(gateway.Config{Conn: h.gatewayConn, Logger: o.Logger}); err != nil {
		return nil, err
	}
	return h, nil
}

// connect makes a connection in process, as a role.
func (h *host) connect(ctx context.Context, role subjects.Role, name string) (*bus.Conn, error) {
	c, err := bus.Connect(ctx, h.bus(role, name))
	if err != nil {
		return nil, fmt.Errorf("connect as %s: %w", role, err)
	}
	h.conns = append(h.conns, c)
	return c, nil
}

func (h *host) bus(role subjects.Role, name string) bus.Config {
	user, password := h.server.Credentials(role, name)
	return bus.Config{
		Name: string(role) + " " + name, Dial: h.server.Dial(), User: user, Password: password,
		InboxPrefix: subjects.InboxPrefix(role, name), Logger: h.log,
	}
}

// close ends clients before the server, which they would try to reach again.
func (h *host) close() {
	for _, c := range slices.Backward(h.conns) {
		c.Close()
	}
	if h.server != nil {
		h.server.Close()
	}
}

// workerFile is what the worker child needs to connect; it is 0600.
type workerFile struct {
	Version  int    `json:"version"`
	Name     string `json:"name"`
	Dir      string `json:"dir"`
	Socket   string `json:"socket"`
	User     string `json:"user"`
	Password string `json:"password"`
}

// workerFile is by what the worker finds us.
func (h *host) workerFile(s State) workerFile {
	w := workerFile{Version: 1, Name: WorkerName, Dir: s.Worker(), Socket: s.workerSocket()}
	w.User, w.Password = h.server.Credentials(subjects.RoleWorker, WorkerName)
	return w
}

// discovery is by what other commands find us.
func (h *host) discovery(s State) *Discovery {
	d := &Discovery{Version: 1, PID: os.Getpid(), Socket: s.Socket(), Tenant: Tenant, StartedAt: time.Now().UTC()}
	d.User, d.Password = h.server.Credentials(subjects.RoleTenant, Tenant)
	d.Observer, d.ObserverPassword = h.server.Credentials(subjects.RoleObserver, observerName)
	return d
}

// announce leaves the discovery file and calls back once a worker has booted, so that
// who finds us is served. When ctx ends it removes the file first of all.
func (h *host) announce(ctx context.Context, o UpOptions) error {
	if err := h.gateway.WaitWorker(ctx); err == nil {
		d := h.discovery(o.State)
		defer os.Remove(o.State.discovery())
		if err := writeJSON(o.State.discovery(), d); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
		if o.OnUp != nil {
			o.OnUp(d)
		}
	}
	<-ctx.Done()
	return nil
}

// WorkerFromFile are the options of the worker that an up started.
func WorkerFromFile(path string) (WorkerOptions, error) {
	var f workerFile
	if err := readJSON(path, &f); err != nil {
		return WorkerOptions{}, err
	}
	if f.Version != 1 {
		return WorkerOptions{}, fmt.Errorf("%s: version %d is not known here", path, f.Version)
	}
	k := KeeperOptions{Config: keeper.Config{Window: AdoptionWindow}}
	return WorkerOptions{Name: f.Name, Dir: f.Dir, Keeper: k, Bus: bus.Config{
		Dial: bus.DialUnix(f.Socket), User: f.User, Password: f.Password,
		InboxPrefix: subjects.InboxPrefix(subjects.RoleWorker, f.Name),
	}}, nil
}
