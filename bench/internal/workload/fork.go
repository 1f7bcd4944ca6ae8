package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/child"
	"github.com/redlatch/redlatch/bench/internal/contend"
)

// PartCommand is the command line argument of a child process. A program that calls Fork must call
// Serve when it is started with this argument.
const PartCommand = "part"

// partConfig is the first message to a child process.
type partConfig struct {
	Contender string           `json:"contender"`
	Target    contend.Target   `json:"target"`
	Workload  contend.Workload `json:"workload"`
	Part      Part             `json:"part"`
	Guard     string           `json:"guard"` // path of the guard file
}

// partReply is a message of a child process: the first one when its session is open, then one per
// workload.
type partReply struct {
	Result contend.Result `json:"result"`
	Error  string         `json:"error,omitempty"`
}

// Fork opens a session with a child process per client. The children run this executable.
func Fork(ctx context.Context, contender string, target contend.Target, w contend.Workload) (contend.Session, error) {
	guard, err := newGuardFile()
	if err != nil {
		return nil, err
	}
	f := &forked{guard: guard}
	for i := range w.Clients {
		c, err := startPart(ctx, partConfig{contender, target, w, Part{i, 1}, guard.path})
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.children = append(f.children, c)
		if i == 0 { // see OpenPart: the first part must be open before the others start
			_, err = c.receive()
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := f.awaitOpen(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// forked is a session in several processes.
type forked struct {
	guard    *guardFile
	children []part
}

// awaitOpen waits until all children but the first are open.
func (f *forked) awaitOpen() error {
	for _, c := range f.children[1:] {
		if _, err := c.receive(); err != nil {
			return err
		}
	}
	return nil
}

// Run starts the workload in all children and merges their results. It does not use its context:
// when the context of Fork is done, the children are killed, and receive fails.
func (f *forked) Run(_ context.Context, w contend.Workload) (contend.Result, error) {
	if w.Kind == contend.Section { // a Crowd's holder is inside, so its guard must not be reset
		f.guard.Reset()
	}
	// Send to all before receiving from any: the children run at the same time.
	for _, c := range f.children {
		if err := c.send(w); err != nil {
			return contend.Result{}, err
		}
	}
	results := make([]contend.Result, len(f.children))
	var g errgroup.Group
	for i, c := range f.children {
		g.Go(func() (err error) {
			results[i], err = c.receive()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return contend.Result{}, err
	}
	r := merge(results)
	r.Overlaps, r.Lost = f.guard.violations() // merge counted the shared guard once per child
	return r, nil
}

// merge adds up the results of the children.
func merge(results []contend.Result) contend.Result {
	var sum contend.Result
	for _, r := range results {
		sum.Elapsed = max(sum.Elapsed, r.Elapsed)
		sum.Ops += r.Ops
		sum.HandOffs += r.HandOffs
		sum.Reads += r.Reads
		sum.AllOps += r.AllOps
		sum.AllHandOffs += r.AllHandOffs
		sum.PerWorker = append(sum.PerWorker, r.PerWorker...)
		sum.Waits = append(sum.Waits, r.Waits...)
		sum.HandOffTimes = append(sum.HandOffTimes, r.HandOffTimes...)
		sum.Overlaps += r.Overlaps
		sum.Lost += r.Lost
		sum.Drain = max(sum.Drain, r.Drain)
		sum.LostHolds += r.LostHolds
		sum.CPU += r.CPU
		sum.Allocs += r.Allocs
		sum.Heap += r.Heap
		sum.Stack += r.Stack
		sum.Goroutines += r.Goroutines
	}
	return sum
}

// Close ends all children at the same time.
func (f *forked) Close() error {
	var g errgroup.Group
	for _, c := range f.children {
		g.Go(c.close)
	}
	return errors.Join(g.Wait(), f.guard.Close())
}

// part is a process that runs a part of the workload.
type part struct{ *child.Process }

func startPart(ctx context.Context, config partConfig) (part, error) {
	p, err := child.Start(ctx, PartCommand, config)
	if err != nil {
		return part{}, fmt.Errorf("workload: %w", err)
	}
	return part{p}, nil
}

func (p part) send(w contend.Workload) error {
	if err := p.Send(w); err != nil {
		return fmt.Errorf("workload: %w", err)
	}
	return nil
}

func (p part) receive() (contend.Result, error) {
	var reply partReply
	if err := p.Receive(&reply); err != nil {
		return reply.Result, fmt.Errorf("workload: %w", err)
	}
	if reply.Error != "" {
		return reply.Result, errors.New(reply.Error)
	}
	return reply.Result, nil
}

func (p part) close() error {
	if err := p.Close(); err != nil {
		return fmt.Errorf("workload: %w", err)
	}
	return nil
}

// Serve is the main function of a child process. It opens the session that the first message in in
// describes, and runs the workload of each further message. It closes the session at the end of in.
func Serve(
	ctx context.Context, contenders map[string]contend.Contender, in io.Reader, out io.Writer,
) (err error) {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	var config partConfig
	if err := decoder.Decode(&config); err != nil {
		return fmt.Errorf("workload: %w", err)
	}
	session, guard, err := config.open(ctx, contenders)
	if err != nil {
		return errors.Join(err, encoder.Encode(partReply{Error: err.Error()}))
	}
	defer func() { err = errors.Join(err, session.Close(), guard.Close()) }()
	reply := partReply{} // the first reply says that the session is open
	for {
		if err := encoder.Encode(reply); err != nil {
			return fmt.Errorf("workload: %w", err)
		}
		var w contend.Workload
		if err := decoder.Decode(&w); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("workload: %w", err)
		}
		r, err := session.Run(ctx, w)
		reply = partReply{Result: r}
		if err != nil {
			reply.Error = err.Error()
		}
	}
}

func (c partConfig) open(
	ctx context.Context, contenders map[string]contend.Contender,
) (contend.Session, *guardFile, error) {
	contender, ok := contenders[c.Contender]
	if !ok {
		return nil, nil, fmt.Errorf("workload: no contender %q", c.Contender)
	}
	guard, err := openGuardFile(c.Guard)
	if err != nil {
		return nil, nil, err
	}
	session, err := OpenPart(ctx, contender, c.Target, c.Workload, c.Part, guard.Guard)
	if err != nil {
		return nil, nil, errors.Join(err, guard.Close())
	}
	return session, guard, nil
}
