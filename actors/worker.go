package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/actors/output"
	"github.com/limpet-sh/limpet/actors/runtime"
	"github.com/limpet-sh/limpet/observer"
	"github.com/limpet-sh/limpet/registry"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Config of a worker. Required: Name, Dir, Control and Events.
type Config struct {
	// Name of the worker in every subject; a valid token, unique in the installation.
	Name string
	// Dir is the state directory: the keeper's socket and the spool are there.
	Dir string
	// Control and Events are the worker's connections, one a role.
	Control, Events *bus.Conn
	// Output is the connection by which output is shipped; Events when nil.
	Output *bus.Conn
	// Cwd of sessions that give none; the user's home by default.
	Cwd string
	// Environ is where the allowlisted environment of commands is taken from.
	Environ []string
	// MaxLive and MaxRetained cap what a session may ask for: 10,000 each by default.
	MaxLive, MaxRetained int
	// SpoolBytes is the output that all processes may keep on disk; default 2 GiB.
	SpoolBytes int64
	// ShipBytes of the output of a process go to the OUTPUT stream, unless its command
	// says otherwise: 64 KiB to 16 MiB, -1 none; default 1 MiB.
	ShipBytes int64
	// Build is said in the boot record.
	Build string
	// OnUp is called once, when requests are served; it must not block. It may be nil.
	OnUp   func()
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if err := subjects.CheckToken("name", c.Name); err != nil {
		return err
	}
	switch {
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("dir: %q is not an absolute path", c.Dir)
	case c.Control == nil || c.Events == nil:
		return errors.New("control, events: a worker needs both connections")
	}
	if c.Cwd == "" {
		c.Cwd, _ = os.UserHomeDir()
		if st, err := os.Stat(c.Cwd); err != nil || !st.IsDir() { // none, or of a user without one
			c.Cwd = "/"
		}
	}
	if c.MaxLive == 0 {
		c.MaxLive = 10_000
	}
	if c.MaxRetained == 0 {
		c.MaxRetained = 10_000
	}
	if c.SpoolBytes == 0 {
		c.SpoolBytes = 2 << 30
	}
	if c.ShipBytes == 0 {
		c.ShipBytes = wire.DefaultShipBytes
	}
	if c.ShipBytes != -1 && (c.ShipBytes < wire.MinShipBytes || c.ShipBytes > wire.MaxShipBytes) {
		return fmt.Errorf("ship_bytes: %d is neither -1 nor within %d..%d", c.ShipBytes, wire.MinShipBytes, wire.MaxShipBytes)
	}
	if c.Output == nil {
		c.Output = c.Events
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("worker", c.Name)
	return nil
}

// deps are what the actors of a worker share; all of it is safe for concurrent use.
type deps struct {
	store    store
	sessions sessionStore
	spawner  Spawner
	feed     func(r *wire.Receipt, trace string, adopted bool) feed
	dir      *directory
	budget   *output.Budget
	ship     *shipping // nil: no output is shipped
	spool    string
	environ  []string
	shells   *runtime.Shells
	files    *files
	log      *slog.Logger
	lostRace func(error) bool
	// addresses reads a process record.
	addresses func(ctx context.Context, tenant, process string) (*wire.ProcessRecord, uint64, error)
	// aside runs f in a goroutine of the worker, of which there are at most maxAside.
	aside func(r request, f func(context.Context))
	// answerFrom answers a start whose execution is recorded, cancelFrom its cancel.
	answerFrom, cancelFrom func(r request, rec *wire.ExecutionRecord)
}

// sessionStore is what sessions need of the registry.
type sessionStore interface {
	UpdateSession(ctx context.Context, tenant string, rec *wire.SessionRecord, rev uint64) (uint64, error)
	Session(ctx context.Context, tenant, name string) (rec *wire.SessionRecord, rev uint64, err error)
}

const (
	maxAside = 64   // calls that wait for the store
	pending  = 8192 // requests between the bus and the router
)

// Worker owns the sessions and processes of one host.
type Worker struct {
	cfg    Config
	deps   *deps
	reg    *registry.Registry
	e      uint64
	inbox  chan request  // opens; bounded: inboxSize
	gone   chan *session // sessions whose actor has returned
	lost   chan error    // the keeper's connection is dead
	aside  chan struct{} // a token for each call of aside
	opened chan *opening
	// opens are under way, by tenant and name; again wait for the end of a session that
	// has their name. Both are touched by Run alone.
	opens map[string]*opening
	again map[*session][]request
	// before is the incarnation that the keeper served before this one; 0 none.
	before uint64
	onGone func(*session)
	own    sync.WaitGroup
}

// New checks the configuration. Nothing runs before Run.
func New(cfg Config) (*Worker, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	return &Worker{
		cfg: cfg, reg: registry.New(cfg.Control, cfg.Name),
		inbox: make(chan request, inboxSize), gone: make(chan *session, inboxSize), lost: make(chan error, 1),
		aside: make(chan struct{}, maxAside), opens: map[string]*opening{}, opened: make(chan *opening, inboxSize),
		again: map[*session][]request{},
	}, nil
}

// ErrLeave as the cause of Run's context ends the worker and leaves its processes to
// the keeper, for the next incarnation. Any other end closes all sessions.
var ErrLeave = errors.New("leave the processes to the keeper")

// ErrKeeperLost: the keeper is gone; what it held is ended or unknown.
var ErrKeeperLost = errors.New("the keeper is gone")

// Run boots a new incarnation, adopts what the keeper holds, and serves until ctx
// ends. It returns when every session has ended and every goroutine of it.
func (w *Worker) Run(ctx context.Context) error {
	client, err := keeper.Dial(ctx, w.cfg.Dir)
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	defer client.Close()
	host, _ := os.Hostname()
	w.e, err = w.reg.Boot(ctx, wire.BootRecord{
		Version: wire.Version, Worker: w.cfg.Name, MinIncarnation: client.LastIncarnation() + 1,
		Host: host, PID: os.Getpid(), StartedAt: time.Now().UTC(), Build: w.cfg.Build,
	})
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	log := w.cfg.Logger.With("incarnation", w.e)
	pub, err := observer.New(w.cfg.Events, w.cfg.Name, w.e, observer.Config{Logger: log})
	if err != nil {
		return fmt.Errorf("observer: %w", err)
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer w.own.Wait()
	defer cancel()
	defer func() {
		ctx, cancel := context.WithTimeout(own, 5*time.Second)
		defer cancel()
		if err := pub.Close(ctx); err != nil {
			log.Warn("observations left", "err", err)
		}
	}()
	w.before = client.LastIncarnation()
	w.wire(own, client, pub, log)
	err = w.serve(ctx, own, client)
	// What a lost keeper held is ended by the next one, and settled by the next worker.
	// What was not served yet is as it was.
	w.shutdown(err != nil && !errors.Is(err, errEnded))
	if errors.Is(err, errEnded) || errors.Is(err, ErrLeave) {
		return nil
	}
	return err
}

// errEnded: the context ended, and with it the worker and its sessions.
var errEnded = errors.New("the worker was told to end")

// serve adopts and serves; it returns why it ended.
func (w *Worker) serve(ctx, own context.Context, client *keeper.Client) error {
	adopted, err := client.Attach(ctx, w.e, w.deliver)
	if err != nil {
		return fmt.Errorf("attach to the keeper as incarnation %d: %w", w.e, err)
	}
	if err := w.adopt(ctx, adopted); err != nil {
		return fmt.Errorf("adopt: %w", err)
	}
	root := w.cfg.Control.Root()
	sub, err := w.cfg.Control.Serve(root.WorkerAll(w.cfg.Name, w.e), "", pending, w.route)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer w.stopServing(own, sub)
	if err := w.cfg.Control.Flush(ctx); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	w.deps.log.Info("worker up", "adopted", len(adopted))
	if w.cfg.OnUp != nil {
		w.cfg.OnUp()
	}
	return w.loop(ctx, own)
}

// stopServing ends the subscription; what came before it is answered.
func (w *Worker) stopServing(own context.Context, sub *bus.Subscription) {
	ctx, cancel := context.WithTimeout(own, time.Second)
	defer cancel()
	if err := sub.Stop(ctx); err != nil {
		w.deps.log.Warn("stop serving", "err", err)
	}
}

// wire makes what the actors share.
func (w *Worker) wire(own context.Context, client *keeper.Client, pub *observer.Publisher, log *slog.Logger) {
	w.deps = &deps{
		store: w.reg, sessions: w.reg, spawner: keeperSpawner{client}, dir: newDirectory(),
		budget: output.NewBudget(w.cfg.SpoolBytes), spool: filepath.Join(w.cfg.Dir, "spool"),
		environ: w.cfg.Environ, shells: &runtime.Shells{}, files: newFiles(), log: log,
		ship:      newShipping(outputStream{w.cfg.Output, w.cfg.Name}, w.cfg.ShipBytes, w.e),
		addresses: w.reg.Process,
		lostRace: func(err error) bool {
			return errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound)
		},
		feed: func(r *wire.Receipt, trace string, adopted bool) feed {
			return pub.Process(observer.Meta{
				Tenant: r.Tenant, Session: r.Session, Process: r.Process, ExecutionID: r.ExecutionID,
				Trace: trace, Adopted: adopted,
			})
		},
		aside: func(r request, f func(context.Context)) { w.runAside(own, r, f) },
	}
	w.onGone = w.sessionGone(own)
	w.deps.answerFrom, w.deps.cancelFrom = w.answerFrom, w.cancelFrom
}

// loop serves opens until ctx ends or the keeper does; it returns why.
func (w *Worker) loop(ctx, own context.Context) error {
	for {
		select {
		case r := <-w.inbox:
			w.open(own, r)
		case o := <-w.opened:
			w.finishOpen(own, o)
		case s := <-w.gone:
			w.sessionEnded(own, s)
		case err := <-w.lost:
			return fmt.Errorf("%w: %w", ErrKeeperLost, err)
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrLeave) {
				return ErrLeave
			}
			return errEnded
		}
	}
}

// shutdown ends all sessions at once and waits for them, then answers what is left.
func (w *Worker) shutdown(leave bool) {
	all := w.deps.dir.all()
	for _, s := range all {
		post(s.ending, closing{by: "shutdown", keep: leave, hurry: true})
	}
	for _, s := range all {
		for ended := false; !ended; {
			select {
			case <-s.done:
				ended = true
			case <-w.gone:
			}
		}
	}
	for _, o := range w.opens {
		o.refuse(errStopping)
	}
	for _, calls := range w.again {
		for _, r := range calls {
			refuse(r, errStopping)
		}
	}
	for {
		select {
		case r := <-w.inbox:
			refuse(r, errStopping)
		default:
			return
		}
	}
}

var errStopping = wire.Errorf(wire.CodeSupervisorShuttingDown, "the worker is shutting down")

// deliver hands what the keeper saw to the process's actor. It is called on the
// client's reader and never blocks: a process has room for all it can be told.
func (w *Worker) deliver(e keeper.Event) {
	if e.Lost != nil {
		for _, p := range w.deps.dir.everyProcess() {
			post(p.facts, e)
		}
		post(w.lost, e.Lost.Err)
		return
	}
	if p := w.deps.dir.anyProcess(e.Process()); p != nil && !post(p.facts, e) {
		w.deps.log.Error("a process was told more than can happen", "process", p.id)
	}
}

// runAside runs f for a request, or refuses it when too many wait for the store.
func (w *Worker) runAside(own context.Context, r request, f func(context.Context)) {
	if !post(w.aside, struct{}{}) {
		refuse(r, errOverloaded)
		return
	}
	w.own.Go(func() { // ends with the answer, at the latest with own
		defer func() { <-w.aside }()
		defer func() {
			if v := recover(); v != nil {
				w.deps.log.Error("call failed", "verb", r.target.Verb, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				refuse(r, fmt.Errorf("panic: %v", v))
			}
		}()
		ctx, cancel := context.WithTimeout(own, answerBy(r, 10*time.Second))
		defer cancel()
		f(ctx)
	})
}
