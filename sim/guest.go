package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/redlatch/redlatch/internal/torture"
	"github.com/redlatch/redlatch/internal/torture/simbuild"
)

// guestPackage is the program that simulates a round.
const guestPackage = "./internal/torture/simguest"

// build compiles the guest with the library of a checkout.
func build(ctx context.Context, library, dir string) ([]byte, error) {
	if _, err := os.Stat(filepath.Join(library, guestPackage)); err != nil {
		return nil, fmt.Errorf("--library %s: it is no checkout of redlatch with a simulation: %w", library, err)
	}
	file := filepath.Join(dir, "guest.wasm")
	program := simbuild.Program{Dir: library, Package: guestPackage, GOOS: "wasip1"}
	if err := simbuild.Build(ctx, program, dir, file); err != nil {
		return nil, fmt.Errorf("the simulation of %s: %w", library, err)
	}
	return os.ReadFile(file)
}

// guest is the compiled program. It is safe for concurrent use.
type guest struct {
	runtime wazero.Runtime
	code    wazero.CompiledModule
	limit   time.Duration // of processor time, for one round
	memory  memories
}

// cachedPrograms is how many compiled programs stay in the cache. Each change of the library makes
// another one, of about 170 MB, and nothing else would ever delete it.
const cachedPrograms = 4

// keepNewest deletes the files in a folder and those below it, except for the newest ones. It is no
// failure if that does not work: somebody else may be deleting them, too.
func keepNewest(dir string, keep int) {
	type file struct {
		path    string
		written time.Time
	}
	var files []file
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // what cannot be read stays
		}
		if info, err := entry.Info(); err == nil {
			files = append(files, file{path: path, written: info.ModTime()})
		}
		return nil
	})
	slices.SortFunc(files, func(a, b file) int { return b.written.Compare(a.written) })
	for _, old := range files[min(keep, len(files)):] {
		_ = os.Remove(old.path)
	}
}

// compile compiles the guest to machine code, or takes that from the cache.
func compile(ctx context.Context, wasm []byte) (*guest, error) {
	config := wazero.NewRuntimeConfigCompiler()
	if dir, err := os.UserCacheDir(); err == nil {
		dir = filepath.Join(dir, "redlatch-sim")
		keepNewest(dir, cachedPrograms)
		if cache, err := wazero.NewCompilationCacheWithDir(dir); err == nil {
			config = config.WithCompilationCache(cache)
		}
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	advance := r.NewHostModuleBuilder("sim").NewFunctionBuilder().WithFunc(func(ctx context.Context, ns int64) {
		ctx.Value(clockKey{}).(*clock).now += ns
	})
	if _, err := advance.Export("advance").Instantiate(ctx); err != nil {
		return nil, err
	}
	code, err := r.CompileModule(ctx, wasm)
	if err != nil {
		return nil, err
	}
	return &guest{runtime: r, code: code, limit: time.Minute}, nil
}

// clock is the virtual clock of a guest, in ns.
type clock struct{ now int64 }

type clockKey struct{}

// request is what the guest reads.
type request struct {
	Plan *torture.Plan `json:"plan"`
	Log  bool          `json:"log,omitempty"`
	Page bool          `json:"page,omitempty"`
}

// randomness is what the guest takes for random.
type randomness struct{ *rand.ChaCha8 }

func (r randomness) Read(p []byte) (int, error) { return r.ChaCha8.Read(p) }

// perReading is how much the virtual clock advances with each reading, so that a loop that waits
// for a later time ends.
const perReading = 200

// result runs one round. If the program that simulates it crashes or does not end, that is a
// violation.
func (g *guest) result(ctx context.Context, q request) *torture.Simulated {
	result, err := g.simulate(ctx, q)
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	if err != nil {
		if result == nil {
			result = &torture.Simulated{Seed: q.Plan.Seed, Hash: fmt.Sprintf("%x", sha256.Sum256([]byte(err.Error())))}
		}
		result.Violations = append(result.Violations, torture.Violation{
			Check: checkCrash, Seed: q.Plan.Seed, Detail: err.Error(),
		})
	}
	return result
}

// watch calls act once this process has used so much processor time, unless stop is called before.
func watch(limit time.Duration, act func()) (stop func()) {
	end := processorTime() + limit
	stopped := make(chan struct{})
	go func() {
		ticks := time.NewTicker(time.Second)
		defer ticks.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-ticks.C:
				if processorTime() > end {
					act()
				}
			}
		}
	}()
	return func() { close(stopped) }
}

// errEndless is the panic that ends a guest.
var errEndless = errors.New("the round does not end")

// simulate runs one round.
func (g *guest) simulate(ctx context.Context, q request) (*torture.Simulated, error) {
	in, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], q.Plan.Seed)
	c, readings := &clock{int64(time.Second)}, 0
	ctx = context.WithValue(ctx, clockKey{}, c)
	// Other rounds may run beside this one, and the machine may be busy: only much processor time
	// means that it does not end.
	end := processorTime() + g.limit
	read := func() int64 {
		readings++
		// wazero could end the guest from outside, but then all of its code would be several times
		// slower.
		if readings%4096 == 0 && (ctx.Err() != nil || processorTime() > end) {
			panic(errEndless)
		}
		c.now += perReading
		return c.now
	}
	// A loop that does not read the clock cannot be ended.
	defer watch(2*g.limit, func() {
		fmt.Fprintf(os.Stderr, "sim: seed %d: %v\n", q.Plan.Seed, errEndless)
		os.Exit(exitViolation)
	})()
	const epoch = int64(1_800_000_000_000_000_000)
	var out, errs bytes.Buffer
	stderr := io.Writer(&errs)
	if q.Log { // whoever looks for the cause of a failure prints from the library
		stderr = io.MultiWriter(stderr, os.Stderr)
	}
	config := wazero.NewModuleConfig().WithName("").WithStdin(bytes.NewReader(in)).WithStdout(&out).WithStderr(stderr).
		WithRandSource(io.Reader(randomness{rand.NewChaCha8(seed)})).
		WithNanotime(read, sys.ClockResolution(1)).
		WithWalltime(func() (int64, int32) {
			t := read() + epoch
			return t / 1e9, int32(t % 1e9)
		}, sys.ClockResolution(1)).
		WithNanosleep(func(ns int64) { c.now += max(ns, 0) }).
		WithOsyield(func() { c.now += perReading })
	for _, v := range guestVariables {
		config = config.WithEnv(v[0], v[1])
	}
	ctx = experimental.WithMemoryAllocator(ctx, &g.memory)
	module, err := g.runtime.InstantiateModule(ctx, g.code, config)
	if module != nil {
		_ = module.Close(ctx) // its memory is for the next one
	}
	var exit *sys.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 0:
	case errors.As(err, &exit):
		return nil, fmt.Errorf("exit code %d: %s", exit.ExitCode(), head(errs.String(), 60))
	case err != nil:
		return nil, err
	}
	var result torture.Simulated
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		return nil, fmt.Errorf("no result: %w: %s", err, head(errs.String(), 60))
	}
	return &result, nil
}

// guestVariables are for the runtime of Go in the guest. A round needs little memory, and few
// collections.
var guestVariables = [][2]string{{"GOGC", "1600"}}

// head returns the first lines of a text.
func head(text string, lines int) string {
	all := strings.SplitN(text, "\n", lines+1)
	return strings.Join(all[:min(lines, len(all))], "\n")
}
