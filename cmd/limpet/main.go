// Command limpet gives a person what agents get: supervised shells on this host.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/subjects/wire"
)

func main() {
	// The keeper is this binary re-executed. It takes no part in flags and help.
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(exitCode(run()))
}

func run() error {
	app.PassNothingOn()
	ctx, again, stop := interrupted(context.Background())
	defer stop()
	// A closed stdout shall be an error of the write, which ends the command too
	// (`limpet run -- yes | head -1`), and not our death.
	signal.Ignore(syscall.SIGPIPE)
	return newRoot(again).ExecuteContext(ctx)
}

// interrupted ends ctx at the first signal that asks us to end, and closes again at the
// second.
func interrupted(ctx context.Context) (_ context.Context, again <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, second := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	done := make(chan struct{})
	go func() { // ends with stop
		for n := 1; ; n++ {
			select {
			case <-signals:
			case <-done:
				return
			}
			switch n {
			case 1:
				cancel()
			case 2:
				close(second)
			}
		}
	}()
	return ctx, second, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// Exit codes, beside those of the commands that are run. From 124 on they are those of
// timeout(1), env(1) and the shells.
const (
	exitFailed     = 1   // limpet itself could not
	exitUsage      = 2   // the call makes no sense
	exitTimeout    = 124 // a time limit ended the command
	exitOwn        = 125 // limpet itself could not, where 1 could be the command's own
	exitNoExec     = 126 // the program cannot be executed
	exitNotFound   = 127 // there is no such program
	exitCancel     = 130 // Ctrl-C, or a kill by way of limpet
	exitCodesOfRun = `Exit codes: the command's own (128 and the number of a signal that ended it); 124 a
time limit ended it, 125 limpet itself failed, 126 the program cannot be executed, 127
there is no such program, 130 it was cancelled by Ctrl-C or limpet kill, 2 the call
makes no sense.`
)

// exitError carries the exit code of a command that was run; err, where there is one,
// is still to be told.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return fmt.Sprintf("exit code %d", e.code)
}

func (e *exitError) Unwrap() error { return e.err }

// notRun gives a failure of ours an exit code that is told apart from the command's.
func notRun(err error) error {
	var exit *exitError
	var usage *usageError
	if err == nil || errors.As(err, &exit) || errors.As(err, &usage) {
		return err
	}
	e := wire.AsError(err)
	switch {
	case e.Code == wire.CodeInvalidArguments:
		return err
	case e.Code != wire.CodeSpawnFailed:
		return &exitError{exitOwn, err}
	case e.Details["kind"] == "program_not_found":
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitNoExec, err}
}

// exitCode is the one place where an error becomes an exit code.
func exitCode(err error) int {
	var exit *exitError
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintln(os.Stderr, "limpet:", message(exit.err))
		}
		return exit.code
	}
	fmt.Fprintln(os.Stderr, "limpet:", message(err))
	if errors.As(err, &usage) || wire.AsError(err).Code == wire.CodeInvalidArguments {
		return exitUsage
	}
	return exitFailed
}

// message is an error for a person: our own errors without their code's brackets.
func message(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Message + " [" + string(e.Code) + "]"
	}
	return err.Error()
}

// usageError is a call that makes no sense; its text says what would.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}
