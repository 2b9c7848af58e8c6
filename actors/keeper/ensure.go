package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Config says which keeper to have.
type Config struct {
	// Dir is the state directory; made with mode 0700 when it is missing.
	Dir string
	// Exe is the program that calls [Main] when its first argument is "keeper".
	// Default: this program.
	Exe string
	// Window is how long the keeper waits for the next worker before it kills all
	// processes; 0 is at once. A keeper that runs already keeps its own.
	Window time.Duration
	// Cgroup is where cgroup leaves are made: empty finds out, "off" uses none.
	Cgroup string
	// Log takes the keeper's log. Default: keeper.log in Dir, appended to.
	Log *os.File
}

func (c *Config) validate() error {
	if c.Dir == "" {
		return errors.New("keeper: Config.Dir is empty")
	}
	if c.Window < 0 {
		return fmt.Errorf("keeper: Config.Window %v is negative", c.Window)
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return fmt.Errorf("keeper: Config.Dir: %w", err)
	}
	c.Dir = dir
	if c.Exe == "" {
		// By its name we would get what an upgrade has put there.
		c.Exe = "/proc/self/exe"
	}
	return nil
}

// Ensure makes sure that a keeper serves the directory when it returns. A keeper that
// it starts is a session of its own and outlives this process; the command is then
// returned and must be waited for, else it stays a zombie as long as this process
// lives. Nil means that one was there.
func Ensure(ctx context.Context, cfg Config) (*exec.Cmd, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("start the keeper: %w", context.Cause(ctx))
		}
		if conn, err := connect(ctx, cfg.Dir); err == nil {
			_ = conn.Close()
			return nil, nil
		}
		cmd, said, err := launch(ctx, cfg)
		switch {
		case err != nil:
			return nil, err
		case said == readyOK:
			return cmd, nil
		}
		_ = cmd.Wait()
		if said != readyHeld {
			return nil, fmt.Errorf("start the keeper: %q; its log says more", strings.TrimPrefix(said, readyFailed+" "))
		}
		pause.Reset(20 * time.Millisecond) // it is just starting, or just ending
	}
}

// launch starts one keeper and waits for its first word.
func launch(ctx context.Context, cfg Config) (*exec.Cmd, string, error) {
	log := cfg.Log
	if log == nil {
		var err error
		log, err = os.OpenFile(filepath.Join(cfg.Dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, "", fmt.Errorf("open %s: %w", logName, err)
		}
		defer log.Close()
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, "", fmt.Errorf("start the keeper: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(cfg.Exe, "keeper", cfg.Dir, "--window="+cfg.Window.String(), "--cgroup="+cfg.Cgroup, "--ready-fd=3")
	if name, err := os.Executable(); err == nil && cfg.Exe == "/proc/self/exe" {
		cmd.Args[0] = name
	}
	// Nothing of ours: children get what their spawn says. The setting keeps the
	// runtime's monitor thread calm (docs/decisions/0006).
	cmd.Env = []string{"GODEBUG=schedtrace=2147483647"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return nil, "", fmt.Errorf("start the keeper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(r, 4096))
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, "", fmt.Errorf("start the keeper: %w", errors.Join(err, context.Cause(ctx)))
	}
	return cmd, string(said), nil
}
