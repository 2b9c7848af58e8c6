package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-sh/limpet/client"
	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestChaosKillGateways: kill -9 of one of two gateways after another, while clients start,
// run, write, read and wait. Nothing is lost, and nothing is done twice, because the
// clients go on with the same ids.
func TestChaosKillGateways(t *testing.T) {
	f := newFleet(t, []string{"w1", "w2"}, []string{"g1", "g2"})
	ctx, cancel := context.WithTimeout(t.Context(), *chaosTime)
	defer cancel()
	var rounds atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			a := agent{nil, f.connect(2 * time.Second)}
			s, err := a.c.Open(t.Context(), wire.Open{Cwd: f.dir, DefaultTimeoutMS: -1, Name: fmt.Sprintf("client%d", i)})
			if err != nil {
				t.Error(err)
				return
			}
			a.s = s
			for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
				goOnByID(t, a, filepath.Join(f.dir, fmt.Sprintf("once-%d-%d", i, n)))
				rounds.Add(1)
			}
		})
	}
	kills := 0
	for ; ctx.Err() == nil; kills++ {
		g := []string{"g1", "g2"}[kills%2]
		time.Sleep(time.Duration(50+rand.IntN(300)) * time.Millisecond)
		f.kill(g)
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		f.startGateway(g)
	}
	all.Wait()
	t.Logf("%d kills of a gateway during %d rounds of start, run, write, read and wait", kills, rounds.Load())
	if rounds.Load() < 8 {
		t.Errorf("only %d rounds", rounds.Load())
	}
}

// goOnByID is what one client does, each step with an id or an offset, and checks that
// each was done once.
func goOnByID(t *testing.T, a agent, file string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*long)
	defer cancel()
	id := subjects.NewID()
	start := wire.Start{ExecutionID: id, Command: wire.Command{Text: "echo x >> " + file + "; cat", Stdin: wire.StdinPipe}}
	r, err := a.s.Start(ctx, start)
	if err != nil {
		t.Errorf("start: %v", err)
		return
	}
	var want strings.Builder
	for i := range 5 {
		line := fmt.Sprintf("%s %d\n", id, i)
		if _, err := a.c.Write(ctx, wire.Write{ProcessRef: wire.ProcessRef{Process: r.Process}, Text: line, Offset: new(int64(want.Len()))}); err != nil {
			t.Errorf("write: %v", err)
		}
		want.WriteString(line)
	}
	if _, err := a.c.CloseStdin(ctx, r.Process); err != nil {
		t.Errorf("close stdin: %v", err)
	}
	var got strings.Builder
	end, err := a.c.Follow(ctx, r.Process, 0, func(c wire.Chunk) error {
		b, err := client.Bytes(c)
		got.Write(b)
		return err
	})
	if err != nil || got.String() != want.String() || end.State != wire.StateCompleted {
		t.Errorf("read %q, want %q; %v, %v", got.String(), want.String(), end, err)
	}
	again, err := a.s.Start(ctx, start)
	if err != nil || again.Process != r.Process {
		t.Errorf("the same start again: %v, %v; it was %s", again, err, r.Process)
	}
	run := wire.Run{ExecutionID: subjects.NewID(), Command: wire.Command{Text: "echo y >> " + file + "; echo done"}}
	res, err := a.s.Run(ctx, run)
	if err != nil || res.Stdout.Text != "done\n" {
		t.Errorf("run: %+v, %v", res, err)
	}
	if w, err := a.c.WaitFor(ctx, wire.WaitFor{Processes: []string{r.Process, res.Receipt.Process}, Mode: "all"}); err != nil || !w.Met {
		t.Errorf("wait_for: %+v, %v", w, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x\ny\n" {
		t.Errorf("the commands left %q, %v", b, err)
	}
}

// A worker that hangs holds up neither another's calls nor the list of all, and is well
// when it goes on.
func TestCaseGatewayHungWorker(t *testing.T) {
	f := newFleet(t, []string{"w1", "w2"}, []string{"g1"})
	one, two := f.on("w1"), f.on("w2")
	id := one.start(t, wire.Command{Text: counting})
	one.until(t, id, "3\n")
	f.signal("w1", syscall.SIGSTOP)
	stuck, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 100 { // end with stuck
		go func() { _, _ = one.c.Status(stuck, id) }()
	}
	for range 10 {
		within(t, long/4, func() { exited(t, two.text(t, "echo well"), 0, "well\n") })
	}
	within(t, long/4, func() {
		all, err := f.client.ListAll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		owners := map[string]string{}
		for _, s := range all.Sessions {
			owners[s.ID] = s.Owner
		}
		if owners[one.s.Info().ID] != wire.OwnerUnreachable || owners[two.s.Info().ID] != "" {
			t.Errorf("%v", owners)
		}
		if i := slices.IndexFunc(all.Processes, func(r wire.Receipt) bool { return r.Process == id }); i < 0 || all.Processes[i].State != wire.StateUnreachable {
			t.Errorf("%+v", all.Processes)
		}
	})
	cancel()
	f.signal("w1", syscall.SIGCONT)
	exited(t, one.text(t, "echo on"), 0, "on\n")
	if r := one.status(t, id); r.State != wire.StateRunning {
		t.Errorf("%s", r.State)
	}
}

// While a worker is gone, what it shipped is read, at the same cursors and offsets, and
// what it did not is said; when it is back, a reader goes on where it was.
func TestCaseGatewayReadsWithoutTheWorker(t *testing.T) {
	f := newFleet(t, []string{"w1"}, []string{"g1"})
	a := f.on("w1")
	small := a.text(t, "for i in $(seq 500); do echo $i; echo e$i >&2; done; exit 3").Receipt.Process
	large := a.text(t, "seq -f %015.0f 200000").Receipt.Process
	live := a.start(t, wire.Command{Text: "echo ready; read x; echo got $x", Stdin: wire.StdinPipe})
	shipped := func(id string, least int64) {
		eventually(t, "shipped output of "+id, long, func() bool { return a.status(t, id).ShippedBytes >= least })
	}
	total := a.status(t, small).Output.TotalBytes
	shipped(small, total)
	shipped(large, 900_000)
	shipped(live, 6)
	page := func(m wire.Read) *wire.Page {
		t.Helper()
		m.MaxBytes = wire.MaxPageBytes
		p, err := f.client.Read(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := page(wire.Read{ProcessRef: ref(small)})
	first := page(wire.Read{ProcessRef: ref(large)})
	f.kill("w1")

	after := page(wire.Read{ProcessRef: ref(small), WaitMS: 60_000})
	if after.Owner != wire.OwnerUnreachable || !after.End || !slices.Equal(after.Chunks, before.Chunks) || *after.ExitCode != 3 || after.Output.TotalBytes != total {
		t.Errorf("%d chunks, %+v", len(after.Chunks), after.Output)
	}
	if p := page(wire.Read{ProcessRef: ref(large)}); !slices.Equal(p.Chunks, first.Chunks) {
		t.Errorf("%d chunks, %d before", len(p.Chunks), len(first.Chunks))
	}
	lost, text := int64(0), ""
	for cursor, more := int64(0), true; more; {
		p := page(wire.Read{ProcessRef: ref(large), Cursor: &cursor})
		for _, g := range p.Gaps {
			lost += g.Bytes
		}
		text, cursor, more = text+texts(p), p.NextCursor, !p.End
	}
	if lost == 0 || lost+int64(len(text)) != 200_000*16 || !strings.HasPrefix(text, fmt.Sprintf("%015d\n", 1)) || !strings.HasSuffix(text, fmt.Sprintf("%015d\n", 200_000)) {
		t.Errorf("%d bytes read, %d missing", len(text), lost)
	}
	found, err := f.client.Search(t.Context(), wire.Search{ProcessRef: ref(small), Pattern: "^e?499$"})
	if err != nil || len(found.Matches) != 2 || found.Owner != wire.OwnerUnreachable {
		t.Errorf("%+v, %v", found, err)
	}
	p := page(wire.Read{ProcessRef: ref(live)})
	if texts(p) != "ready\n" || p.End || p.State != wire.StateUnreachable || p.Owner != wire.OwnerUnreachable {
		t.Errorf("%+v", p)
	}
	if r := a.status(t, live); r.State != wire.StateUnreachable {
		t.Errorf("%s", r.State)
	}
	if w, err := f.client.WaitFor(t.Context(), wire.WaitFor{Processes: []string{live, small}, Mode: "any"}); err != nil || !w.Met || !w.Results[1].Met {
		t.Errorf("%+v, %v", w, err)
	}
	refused(t, a.raw(t, wire.VerbWrite, &wire.Write{Version: 1, ProcessRef: ref(live), Text: "x\n"}), wire.CodeUnreachable, "")

	f.startWorker("w1")
	eventually(t, "the process", long, func() bool { return a.status(t, live).State == wire.StateRunning })
	a.typed(t, live, "it\n")
	rest := page(wire.Read{ProcessRef: ref(live), Cursor: &p.NextCursor, WaitMS: 60_000})
	if texts(rest) != "got it\n" || rest.Owner != "" {
		t.Errorf("%+v", rest)
	}
	if out := a.output(t, large); len(out) != 200_000*16 {
		t.Errorf("%d bytes, with the worker back", len(out))
	}
}

// Of several processes on two workers the first that is ready answers.
func TestCaseGatewayWaitsForSeveral(t *testing.T) {
	f := newFleet(t, []string{"w1", "w2"}, []string{"g1", "g2"})
	one, two := f.on("w1"), f.on("w2")
	ids := []string{
		one.start(t, wire.Command{Text: "sleep 60"}),
		two.start(t, wire.Command{Text: "sleep 0.4; echo listening; sleep 60"}),
		one.start(t, wire.Command{Text: "sleep 0.1; echo failed; exit 4"}),
	}
	wait := func(m wire.WaitFor) *wire.Waited {
		t.Helper()
		m.Processes, m.WaitMS = ids, long.Milliseconds()
		w, err := f.client.WaitFor(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := wait(wire.WaitFor{For: "pattern", Pattern: "^listening$"})
	if !w.Met || !w.Results[1].Met || w.Results[1].Match.Line != "listening" || w.Results[0].Met || !w.Results[2].Ended || w.Results[2].Met {
		t.Errorf("%+v", w)
	}
	if w = wait(wire.WaitFor{For: "exit"}); !w.Met || !w.Results[2].Met || *w.Results[2].Receipt.ExitCode != 4 {
		t.Errorf("%+v", w)
	}
	go func() { // ends with the processes
		_, _ = f.client.Terminate(t.Context(), wire.Terminate{ProcessRef: ref(ids[0]), Mode: "kill"})
		_, _ = f.client.Terminate(t.Context(), wire.Terminate{ProcessRef: ref(ids[1]), Mode: "kill"})
	}()
	if w = wait(wire.WaitFor{Mode: "all"}); !w.Met || !w.Results[0].Ended || !w.Results[1].Ended || !w.Results[2].Ended {
		t.Errorf("%+v", w)
	}
}
