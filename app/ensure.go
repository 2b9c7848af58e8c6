package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/limpet-sh/limpet/subjects/bus"
)

// UntilIdle is how long an up in the background goes on without a client and a session.
const UntilIdle = time.Minute

const (
	// ensurePatience bounds one Ensure: an up that is just ending may take stopChild for
	// its worker, and the next starts after it.
	ensurePatience = 45 * time.Second
	ensurePause    = 20 * time.Millisecond

	// revive is how long an owner is gone before a client of it starts the next. One that
	// somebody restarts is back sooner.
	revive = time.Second
	// maxRevivals bounds how often in a minute, and how often in a row without success.
	maxRevivals = 5
)

// EnsureOptions say where an up is, and how one is started in the background.
type EnsureOptions struct {
	State State
	// Exe is this binary, by default /proc/self/exe; its "up" is run.
	Exe string
	// UntilIdle of the up that is started; default UntilIdle.
	UntilIdle time.Duration
	// Config is the file that its --config names; empty: that of $LIMPET_CONFIG, if any.
	Config string
	Logger *slog.Logger
}

func (o *EnsureOptions) validate() error {
	if o.State == "" {
		return errors.New("state: missing")
	}
	if o.Exe == "" {
		o.Exe = "/proc/self/exe"
	}
	if o.UntilIdle == 0 {
		o.UntilIdle = UntilIdle
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	// It is started in another directory than ours.
	if o.Config = cmp.Or(o.Config, os.Getenv("LIMPET_CONFIG")); o.Config != "" {
		abs, err := filepath.Abs(o.Config)
		if err != nil {
			return fmt.Errorf("config: %w", err)
		}
		o.Config = abs
	}
	return nil
}

// errTaken: the state directory has an owner that is just starting, or just ending.
var errTaken = errors.New("the state directory has another owner")

// Ensure finds what is up in the state directory. Where nothing is, it starts an up in
// the background, which outlives us and ends by itself when nobody uses it. Of several
// that do so at once one starts it, and all find it. It is bounded by ensurePatience.
func Ensure(ctx context.Context, o EnsureOptions) (*Discovery, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(string(o.State), 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ensurePatience, fmt.Errorf("its owner neither serves nor ends within %v", ensurePatience))
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("find what is up in %s: %w", o.State, context.Cause(ctx))
		}
		d, err := Discover(o.State)
		if !errors.Is(err, ErrNotUp) {
			return d, err
		}
		// Who holds this lock is starting one; the flock of the store decides in any case.
		unlock, err := lock(o.State.startLock())
		if err == nil {
			d, err = o.background(ctx)
			unlock()
			if !errors.Is(err, errTaken) {
				return d, err
			}
		} else if !errors.Is(err, errLocked) {
			return nil, err
		}
		pause.Reset(ensurePause)
	}
}

// background starts an up and waits until it serves.
func (o *EnsureOptions) background(ctx context.Context) (*Discovery, error) {
	if d, err := Discover(o.State); !errors.Is(err, ErrNotUp) {
		return d, err // another was quicker
	}
	if o.owned() {
		return nil, errTaken
	}
	log, err := openLog(o.State.upLog())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	args := []string{"up", "--state", string(o.State), "--until-idle", o.UntilIdle.String()}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	cmd := exec.Command(o.Exe, args...)
	cmd.Args[0] = "limpet" // what ps shows
	cmd.Env, cmd.Dir = calmed(os.Environ()), string(o.State)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives our terminal, our group and us
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start limpet up: %w", err)
	}
	o.Logger.Info("started limpet up in the background", "pid", cmd.Process.Pid, "state", o.State)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the child, or with this program, which it may outlive
	tick := time.NewTicker(ensurePause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if d, err := Discover(o.State); !errors.Is(err, ErrNotUp) {
				return d, err
			}
		case err := <-ended:
			if o.owned() {
				return nil, errTaken
			}
			return nil, fmt.Errorf("limpet up did not start (%w): %s", err, said(o.State.upLog(), from))
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for limpet up in %s: %w", o.State, context.Cause(ctx))
		}
	}
}

// owned tells whether somebody holds the store, as far as can be seen from here.
func (o *EnsureOptions) owned() bool {
	_, fd, err := holder(o.State.storeLock())
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// said is the end of what a log got from an offset on.
func said(path string, from int64) string {
	const most = 1000
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, from, 1<<20))
	if err != nil {
		return err.Error()
	}
	if len(b) > most {
		b = b[len(b)-most:]
	}
	if text := strings.TrimSpace(string(b)); text != "" {
		return text
	}
	return "it said nothing in " + path
}

// dialOwner dials the owner of a state directory, for a connection that outlives owners.
// Where the owner is gone for longer than revive, the next one is started; when that
// fails maxRevivals times in a row, or is needed as often in a minute, fail is called and
// it is not tried again. The bus calls the dialer from one goroutine at a time.
func dialOwner(ctx context.Context, o EnsureOptions, d *Discovery, fail context.CancelCauseFunc) func() (net.Conn, error) {
	var (
		dial    = bus.DialUnix(d.Socket)
		since   time.Time   // when it was found gone
		starts  []time.Time // of the last minute
		failed  int         // in a row
		givenUp error
	)
	return func() (net.Conn, error) {
		conn, err := dial()
		switch {
		case err == nil:
			since = time.Time{}
			return conn, nil
		case givenUp != nil:
			return nil, givenUp
		case since.IsZero():
			since = time.Now()
			return nil, err
		case time.Since(since) < revive || ctx.Err() != nil:
			return nil, err
		}
		now := time.Now()
		for len(starts) > 0 && now.Sub(starts[0]) > time.Minute {
			starts = starts[1:]
		}
		next, err := Ensure(ctx, o)
		switch {
		case err == nil && next.Password != d.Password:
			givenUp = fmt.Errorf("%s was made anew; start this command again", o.State)
		case err == nil && len(starts) >= maxRevivals:
			givenUp = fmt.Errorf("limpet up ended %d times within a minute; its log is %s", len(starts)+1, o.State.upLog())
		case err != nil && failed+1 >= maxRevivals && ctx.Err() == nil:
			givenUp = err
		case err != nil:
			failed++
			o.Logger.Warn("the owner is gone, and the next one did not start", "state", o.State, "err", err)
			return nil, err
		}
		if givenUp != nil {
			fail(givenUp)
			return nil, givenUp
		}
		starts, failed = append(starts, now), 0
		return dial()
	}
}
