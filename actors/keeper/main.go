package keeper

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultWindow is how long a keeper waits for the next worker.
const DefaultWindow = 10 * time.Minute

// Exit codes of [Main].
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitHeld    = 3 // another keeper serves this directory
	readyOK     = "ready"
	readyHeld   = "held"
	readyFailed = "failed"
)

// settings of one keeper.
type settings struct {
	dir    string
	window time.Duration
	cgroup string
	ready  int // descriptor to say readyOK on; -1 none
}

func parse(args []string) (settings, error) {
	s := settings{}
	flags := flag.NewFlagSet("keeper DIR", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&s.window, "window", DefaultWindow, "how long to wait for the next worker before all processes are killed; 0 is at once")
	flags.StringVar(&s.cgroup, "cgroup", "", `where cgroup leaves are made: empty finds out, "off" uses none, or a cgroup v2 directory`)
	flags.IntVar(&s.ready, "ready-fd", -1, "a descriptor to write to once the socket is there")
	if len(args) == 0 || args[0] == "" || args[0][0] == '-' {
		return s, errors.New("usage: keeper DIR [--window 10m] [--cgroup off|PATH] [--ready-fd N]")
	}
	s.dir = args[0]
	if err := flags.Parse(args[1:]); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("keeper: unexpected argument %q", flags.Arg(0))
	case s.window < 0:
		return s, fmt.Errorf("keeper: --window %v is negative", s.window)
	}
	return s, nil
}

// Main is the main of the keeper process; args follow the word "keeper". It serves one
// state directory until it is told to end or has nothing left to hold, and returns the
// exit code. It logs to stderr.
func Main(args []string) int {
	// Two hands are enough: one forks, one tells. More would only wake each other.
	goruntime.GOMAXPROCS(max(1, min(2, goruntime.NumCPU()/2)))
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("keeper", os.Getpid())
	set, err := parse(args)
	if err != nil {
		log.Error("keeper arguments", "err", err)
		return exitUsage
	}
	// Handled, not ignored: an ignored signal would be inherited by every child. A
	// worker that took our stderr with it must not end us by PIPE, nor its terminal by
	// HUP.
	absorbed := make(chan os.Signal, 1)
	signal.Notify(absorbed, syscall.SIGPIPE, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	ready := readiness(set.ready)
	err = serveDir(ctx, set, log, ready)
	switch {
	case errors.Is(err, errHeld):
		ready(readyHeld)
		log.Error("not started", "err", err)
		return exitHeld
	case err != nil:
		ready(readyFailed + " " + err.Error())
		log.Error("keeper failed", "err", err)
		return exitFailed
	}
	return exitOK
}

// readiness gives a function that tells whoever started us, once.
func readiness(fd int) func(string) {
	if fd < 0 {
		return func(string) {}
	}
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "ready")
	return func(text string) {
		_, _ = io.WriteString(f, text) // who started us may be gone
		_ = f.Close()
	}
}

var errHeld = errors.New("another keeper serves this directory")

// serveDir takes the directory, serves it, and leaves it clean.
func serveDir(ctx context.Context, set settings, log *slog.Logger, ready func(string)) (err error) {
	if err := os.MkdirAll(set.dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	dir, err := os.Open(set.dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer dir.Close()
	lock, err := hold(set.dir)
	if err != nil {
		return err
	}
	defer lock.Close() // last: it lets the next keeper in
	pidFile := filepath.Join(set.dir, pidName)
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", pidName, err)
	}
	defer os.Remove(pidFile)
	k, err := newKeeper(set, log)
	if err != nil {
		return err
	}
	listener, err := listen(dir)
	if err != nil {
		return errors.Join(err, k.close())
	}
	defer os.Remove(socketPath(dir))
	log.Info("keeper serves", "dir", set.dir, "window", set.window, "cgroup", k.forker.Cgroup())
	ready(readyOK)
	return k.run(ctx, listener)
}

// hold takes the lock of the directory. It lasts as long as the file is open.
func hold(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", lockName, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", errHeld, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", lockName, err)
	}
	return f, nil
}
