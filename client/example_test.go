package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/limpet-sh/limpet/actors/keeper"
	"github.com/limpet-sh/limpet/app"
	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestMain makes the test binary the keeper when the examples re-execute it as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// connect starts everything in this process and connects to it. A program that finds a
// `limpet up` gives client.Config{Socket: …} instead.
func connect(ctx context.Context) (*client.Client, func()) {
	local, err := app.StartLocal(ctx, app.LocalOptions{Cwd: "/", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	b := local.Bus("example")
	c, err := client.Connect(ctx, client.Config{Dial: b.Dial, User: b.User, Password: b.Password})
	if err != nil {
		panic(err)
	}
	return c, func() {
		c.Close()
		if err := local.Stop(); err != nil {
			panic(err)
		}
	}
}

func Example() {
	ctx := context.Background()
	c, stop := connect(ctx)
	defer stop()

	s, err := c.Open(ctx, wire.Open{Name: "build"})
	if err != nil {
		panic(err)
	}
	res, err := s.Run(ctx, wire.Run{Command: wire.Command{Text: "echo out; echo err >&2; exit 3"}})
	if err != nil {
		panic(err)
	}
	fmt.Printf("stdout %q, stderr %q\n", res.Stdout.Text, res.Stderr.Text)
	fmt.Println(res.Receipt.State, *res.Receipt.ExitCode)
	// Output:
	// stdout "out\n", stderr "err\n"
	// failed 3
}

func ExampleClient_Follow() {
	ctx := context.Background()
	c, stop := connect(ctx)
	defer stop()

	s, err := c.Open(ctx, wire.Open{})
	if err != nil {
		panic(err)
	}
	p, err := s.Start(ctx, wire.Start{Command: wire.Command{Text: "for i in 1 2 3; do echo line $i; done"}})
	if err != nil {
		panic(err)
	}
	end, err := c.Follow(ctx, p.Process, 0, func(ch wire.Chunk) error {
		b, err := client.Bytes(ch)
		fmt.Print(string(b))
		return err
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(end.State, end.Output.TotalBytes, "bytes")
	// Output:
	// line 1
	// line 2
	// line 3
	// completed 21 bytes
}

func ExampleClient_Write() {
	ctx := context.Background()
	c, stop := connect(ctx)
	defer stop()

	s, err := c.Open(ctx, wire.Open{})
	if err != nil {
		panic(err)
	}
	p, err := s.Start(ctx, wire.Start{Command: wire.Command{Text: "cat", Stdin: wire.StdinPipe}})
	if err != nil {
		panic(err)
	}
	// With an offset a write may be repeated: nothing is typed twice.
	var offset int64
	for range 2 {
		m := wire.Write{ProcessRef: wire.ProcessRef{Process: p.Process}, Text: "hello\n", Offset: &offset}
		if _, err := c.Write(ctx, m); err != nil {
			panic(err)
		}
	}
	if _, err := c.CloseStdin(ctx, p.Process); err != nil {
		panic(err)
	}
	end, err := c.Follow(ctx, p.Process, 0, func(ch wire.Chunk) error {
		b, err := client.Bytes(ch)
		fmt.Printf("%s", b)
		return err
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(end.State)
	// Output:
	// hello
	// completed
}

// An execution id makes a start repeatable, and a conflict visible.
func ExampleSession_Start() {
	ctx := context.Background()
	c, stop := connect(ctx)
	defer stop()

	s, err := c.Open(ctx, wire.Open{})
	if err != nil {
		panic(err)
	}
	a, err := s.Start(ctx, wire.Start{ExecutionID: "deploy-7", Command: wire.Command{Text: "sleep 30"}})
	if err != nil {
		panic(err)
	}
	b, err := s.Start(ctx, wire.Start{ExecutionID: "deploy-7", Command: wire.Command{Text: "sleep 30"}})
	if err != nil {
		panic(err)
	}
	fmt.Println("one process:", a.Process == b.Process)
	_, err = s.Start(ctx, wire.Start{ExecutionID: "deploy-7", Command: wire.Command{Text: "sleep 31"}})
	fmt.Println("another command:", errors.Is(err, &wire.Error{Code: wire.CodeExecutionConflict}))

	end, err := c.Terminate(ctx, wire.Terminate{ProcessRef: wire.ProcessRef{Process: a.Process}, By: "example"})
	if err != nil {
		panic(err)
	}
	fmt.Println(end.State, end.Reason, end.Signal)
	// Output:
	// one process: true
	// another command: true
	// cancelled cancel TERM
}

func ExampleSession_Run_invalid() {
	ctx := context.Background()
	c, stop := connect(ctx)
	defer stop()

	_, err := c.Session("build").Run(ctx, wire.Run{Command: wire.Command{Text: "  "}})
	e := wire.AsError(err)
	fmt.Println(e.Code, e.Field)
	_, err = c.Session("nobody").Run(ctx, wire.Run{Command: wire.Command{Text: "true"}})
	e = wire.AsError(err)
	fmt.Println(e.Code, e.Field)
	// Output:
	// invalid_arguments command.text
	// not_found session_name
}
