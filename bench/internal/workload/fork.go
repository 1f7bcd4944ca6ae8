package workload

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// PartCommand is the argument by which this program is told to be a part: it then calls Serve.
const PartCommand = "part"

// assignment is what a part reads first.
type assignment struct {
	Contender string           `json:"contender"`
	Target    contend.Target   `json:"target"`
	Workload  contend.Workload `json:"workload"`
	Part      Part             `json:"part"`
	Board     string           `json:"board"` // the file that has it
}

// answer is a part's: first one that it is open, then one for each workload that it is sent.
type answer struct {
	Result contend.Result `json:"result"`
	Error  string         `json:"error,omitempty"`
}

// Fork is Open with a process for each client, all of this program.
func Fork(ctx context.Context, contender string, target contend.Target, w contend.Workload) (contend.Session, error) {
	board, err := newBoardFile()
	if err != nil {
		return nil, err
	}
	f := &forked{board: board}
	for i := range w.Clients {
		p, err := start(ctx, assignment{contender, target, w, Part{i, 1}, board.path})
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.parts = append(f.parts, p)
		if i == 0 { // it opens first
			_, err = p.answer()
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := f.opened(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// forked is a workload in several processes.
type forked struct {
	board *boardFile
	parts []*child
}

func (f *forked) opened() error {
	for _, p := range f.parts[1:] {
		if _, err := p.answer(); err != nil {
			return err
		}
	}
	return nil
}

// Run has all parts start together.
func (f *forked) Run(_ context.Context, w contend.Workload) (contend.Result, error) {
	if w.Kind == contend.Section { // nobody is inside: a crowd's holder is
		f.board.Reset()
	}
	for _, p := range f.parts {
		if err := p.send(w); err != nil {
			return contend.Result{}, err
		}
	}
	results := make([]contend.Result, len(f.parts))
	var g errgroup.Group
	for i, p := range f.parts {
		g.Go(func() (err error) {
			results[i], err = p.answer()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return contend.Result{}, err
	}
	r := merge(results)
	r.Overlaps, r.Lost = f.board.verdict()
	return r, nil
}

// merge adds up the results of parts.
func merge(results []contend.Result) contend.Result {
	var sum contend.Result
	for _, r := range results {
		sum.Elapsed = max(sum.Elapsed, r.Elapsed)
		sum.Ops += r.Ops
		sum.HandOvers += r.HandOvers
		sum.Reads += r.Reads
		sum.AllOps += r.AllOps
		sum.AllHandOvers += r.AllHandOvers
		sum.PerWorker = append(sum.PerWorker, r.PerWorker...)
		sum.Waits = append(sum.Waits, r.Waits...)
		sum.HandOverTimes = append(sum.HandOverTimes, r.HandOverTimes...)
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

// Close ends the processes.
func (f *forked) Close() error {
	var g errgroup.Group
	for _, p := range f.parts {
		g.Go(p.close)
	}
	return errors.Join(g.Wait(), f.board.Close())
}

// child is a process that has a part.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	encoder *json.Encoder
	decoder *json.Decoder
}

func start(ctx context.Context, a assignment) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	p := &child{cmd: exec.CommandContext(ctx, self, PartCommand)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	p.encoder, p.decoder = json.NewEncoder(p.in), json.NewDecoder(bufio.NewReader(out))
	if err := p.send(a); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *child) send(v any) error {
	if err := p.encoder.Encode(v); err != nil {
		return fmt.Errorf("workload: to a part: %w", err)
	}
	return nil
}

func (p *child) answer() (contend.Result, error) {
	var a answer
	if err := p.decoder.Decode(&a); err != nil {
		return a.Result, fmt.Errorf("workload: of a part: %w", err)
	}
	if a.Error != "" {
		return a.Result, errors.New(a.Error)
	}
	return a.Result, nil
}

// close ends the process: it reads no further line.
func (p *child) close() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("workload: a part: %w", err)
	}
	return nil
}

// Serve is a part's life: it opens what the first line of in says, runs what each further line says, and closes when they end.
func Serve(ctx context.Context, contenders map[string]contend.Contender, in io.Reader, out io.Writer) (err error) {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	var a assignment
	if err := decoder.Decode(&a); err != nil {
		return fmt.Errorf("workload: %w", err)
	}
	session, board, err := a.open(ctx, contenders)
	if err != nil {
		return errors.Join(err, encoder.Encode(answer{Error: err.Error()}))
	}
	defer func() { err = errors.Join(err, session.Close(), board.Close()) }()
	reply := answer{}
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
		reply = answer{Result: r}
		if err != nil {
			reply.Error = err.Error()
		}
	}
}

func (a assignment) open(ctx context.Context, contenders map[string]contend.Contender) (contend.Session, *boardFile, error) {
	c, ok := contenders[a.Contender]
	if !ok {
		return nil, nil, fmt.Errorf("workload: no contender %q", a.Contender)
	}
	board, err := openBoardFile(a.Board)
	if err != nil {
		return nil, nil, err
	}
	session, err := OpenPart(ctx, c, a.Target, a.Workload, a.Part, board.Board)
	if err != nil {
		return nil, nil, errors.Join(err, board.Close())
	}
	return session, board, nil
}
