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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return newRoot().ExecuteContext(ctx)
}

// Exit codes, beside those of the commands that are run.
const (
	exitFailed  = 1   // limpet itself could not
	exitUsage   = 2   // the call makes no sense
	exitTimeout = 124 // a time limit ended the command
	exitCancel  = 130 // Ctrl-C
)

// exitError carries the exit code of a command that was run.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// exitCode is the one place where an error becomes an exit code.
func exitCode(err error) int {
	var exit *exitError
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
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
	var e *wire.Error
	if errors.As(err, &e) {
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
