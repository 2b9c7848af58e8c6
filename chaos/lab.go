package chaos

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// Role runs the role that a re-executed test binary is to play, and reports whether
// there was one. A TestMain calls it first.
func Role(args []string) (code int, played bool) {
	if len(args) < 2 {
		return 0, false
	}
	stop := profile(args[1])
	defer stop()
	var err error
	switch args[1] {
	case "keeper":
		return keeper.Main(args[2:]), true
	case "worker":
		err = playWorker(args[len(args)-1])
	case "up":
		err = playUp(args[2])
	case "gateway":
		err = playGateway(args[2])
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[1], err)
		return 1, true
	}
	return 0, true
}

// profile writes a CPU profile of the role into $LIMPET_LAB_PROFILE, a directory.
func profile(role string) (stop func()) {
	dir := os.Getenv("LIMPET_LAB_PROFILE")
	if dir == "" {
		return func() {}
	}
	f, err := os.Create(filepath.Join(dir, role+".pprof"))
	if err != nil {
		return func() {}
	}
	if pprof.StartCPUProfile(f) != nil {
		_ = f.Close()
		return func() {}
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}
}

func playWorker(file string) error {
	o, err := app.WorkerFromFile(file)
	if err != nil {
		return err
	}
	app.Modest()
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	w, err := app.NewWorker(o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return w.Run(ctx)
}

// gatewayFile is how a gateway of a fleet finds NATS; it is 0600.
type gatewayFile struct{ Socket, Name, User, Password string }

func playGateway(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var f gatewayFile
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return app.Gateway(ctx, app.GatewayOptions{
		Bus: bus.Config{
			Dial: bus.DialUnix(f.Socket), User: f.User, Password: f.Password,
			InboxPrefix: subjects.InboxPrefix(subjects.RoleGateway, f.Name),
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
}

func playUp(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app.Modest()
	return app.Up(ctx, app.UpOptions{
		State:      app.State(dir),
		SyncAlways: os.Getenv("LIMPET_LAB_SYNC") == "always",
		Memory:     os.Getenv("LIMPET_LAB_STORE") == "memory",
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnUp:       func(*app.Discovery) { fmt.Println("up") },
	})
}

// Lab is one host that is up.
type Lab struct {
	State  app.State
	Client *client.Client
	up     *exec.Cmd

	program string              // that plays the roles; this one when empty
	user    *syscall.Credential // that it is up as; this one when nil
}

// Start brings a host up in dir; env is added to its environment.
func Start(ctx context.Context, dir string, env ...string) (*Lab, error) {
	l := &Lab{State: app.State(dir)}
	return l, l.start(ctx, env...)
}

func (l *Lab) start(ctx context.Context, env ...string) error {
	if err := l.Up(ctx, env...); err != nil {
		return err
	}
	d, err := app.Discover(l.State)
	if err != nil {
		return errors.Join(err, l.Stop())
	}
	b := d.Bus("chaos")
	l.Client, err = client.Connect(ctx, client.Config{
		Dial: b.Dial, User: b.User, Password: b.Password, InboxPrefix: b.InboxPrefix, Tenant: d.Tenant,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return errors.Join(err, l.Stop())
	}
	return nil
}

// Up starts up, anew after a Kill, and returns when it serves.
func (l *Lab) Up(ctx context.Context, env ...string) error {
	if err := os.MkdirAll(string(l.State), 0o700); err != nil {
		return err
	}
	errs, err := os.OpenFile(filepath.Join(string(l.State), "up.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer errs.Close()
	cmd := exec.Command(cmp.Or(l.program, "/proc/self/exe"), "up", string(l.State))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: l.user}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.up = cmd
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "up\n" {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		err := cmd.Wait()
		log, _ := os.ReadFile(errs.Name())
		return fmt.Errorf("up said %q: %w\n%s", line, err, log)
	}
	return nil
}

// Stop ends the host as Ctrl-C does and waits for it.
func (l *Lab) Stop() error {
	if l.Client != nil {
		l.Client.Close()
	}
	if l.up == nil {
		return nil
	}
	_ = l.up.Process.Signal(syscall.SIGTERM)
	t := time.AfterFunc(60*time.Second, func() { _ = l.up.Process.Kill() })
	defer t.Stop()
	err := l.up.Wait()
	l.up = nil
	return err
}

// PID of a part: "up", "worker" or "keeper"; 0 when it does not run.
func (l *Lab) PID(part string) int {
	if part == "up" {
		return l.up.Process.Pid
	}
	b, err := os.ReadFile(filepath.Join(string(l.State), part+".pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// Kill ends a part with -9.
func (l *Lab) Kill(part string) error {
	pid := l.PID(part)
	if pid <= 0 {
		return fmt.Errorf("%s does not run", part)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s %d: %w", part, pid, err)
	}
	if part == "up" {
		_ = l.up.Wait()
		l.up = nil
	}
	return nil
}

// Open opens a session whose limits are out of the way.
func (l *Lab) Open(ctx context.Context, name string) (*client.Session, error) {
	return l.Client.Open(ctx, wire.Open{
		Version: wire.Version, Name: name, DefaultTimeoutMS: -1,
		Limits: &wire.SessionLimits{LiveProcesses: 4000, RetainedProcesses: 200},
	})
}
