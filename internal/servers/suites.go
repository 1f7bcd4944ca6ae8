package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// The topologies, each a column of the table.
const (
	oneServer = "one server"
	cluster   = "cluster"
	failOver  = "failover"
)

var topologies = []string{oneServer, cluster, failOver}

// suite is a selection of the tests of some packages.
type suite struct {
	topology string
	packages string // their paths, separated by spaces
	run      string // regular expression of the names of tests
	short    bool   // also part of the short run
	only     string // regular expression of the servers that can do what the tests need; "": all
}

// suites selects the tests that depend on the server: the contract, exclusion under load, wake-ups and
// hand-offs, what remains after faults, and the replies of the scripts.
var suites = []suite{
	{oneServer, "./primitives ./tests/contract", "^Test(MutexContract|SharedContract|JointContract)$", true, ""},
	{oneServer, "./primitives ./tests/contract ./tests/faults ./tests/wire", "^Test(" +
		"Conformance(Locks|RWLock|Semaphores|Permits|Fair.*|Tokens)|C16Repeated.*|" +
		"ScriptFlush.*|ACL.*|Handoff.*|ReleaseHandsOff.*|C15FormerHolder.*AtOnce|C21.*|FairLockServesInOrder|" +
		"FairLockHandoffLease|RWLock.*Wakes.*|RWLockWriter.*|Semaphore.*Wakes.*|Latch.*Wakes.*|Permit.*Wakes.*)$", false, ""},
	{oneServer, "./pubsub", "^Test(Listeners.*|HungServer.*|RestartedServer.*|Refusal.*|Reconnect.*)$", false, ""},
	{oneServer, "./scripts", "^Test(AnswersOfAllKinds|UnknownScript.*|Batch.*|MemoryOutlives.*|Hashes)$", false, ""},
	{cluster, "./tests/topology", "^TestCluster$", true, ""},
	{cluster, "./primitives ./tests/contract ./tests/faults ./tests/topology",
		"^Test(Cluster.+|.*(In|On)ACluster|RenewalWh.*|C20NamesInTwoSlots.*)$", false, ""},
	{cluster, "./pubsub", "^Test(ShardedPubSub.*|PlainPubSub.*|Subscriptions.*Slot)$", true, ""},
	{cluster, "./pubsub", "^Test(ShardedDetects.*|SlotOf.*|DeadShard.*)$", false, ""},
	{cluster, "./scripts", "^Test(RunnerOnCluster|SilentShard.*|Shard.*|Moved.*|Asked.*|Node.*)$", false, ""},
	{cluster, "./tests/topology", "^TestAtomicSlotMigration", true, "^(Redis 8\\.[4-9]|Valkey 9)"},
	{cluster, "./tests/topology ./doc", "^Test(ClientsInDatabases|SetUpOfADatabase)OfACluster$", false, "^Valkey 9"},
	{oneServer, "./tests/topology", "^TestServerWithoutEval$", false, ""},
	{failOver, "./tests/topology", "^Test(Sentinel.*|TooFewReplicas.*)$", false, ""},
	{failOver, "./pubsub", "^Test.*SentinelFailover$", false, ""},
}

// noMiniredis skips the subtests that redistest.Each runs without a server.
const noMiniredis = "/^miniredis$|//^miniredis$"

// result is the result of the tests of one topology on one server.
type result struct {
	ran    int // tests without subtests
	failed []string
	skips  []string
	took   time.Duration
}

func (r result) passed() bool { return len(r.failed)+len(r.skips) == 0 && r.ran > 0 }

func (r result) empty() bool { return len(r.failed) == 0 && r.ran == 0 }

func (r result) String() string {
	switch {
	case len(r.failed) > 0:
		return "FAILED: " + strings.Join(r.failed, ", ")
	case len(r.skips) > 0:
		return "skipped: " + strings.Join(r.skips, ", ")
	}
	return fmt.Sprintf("%d tests pass", r.ran)
}

// test runs the tests of one topology. It prints the output of the tests that fail.
func test(ctx context.Context, s *server, topology string, short bool) (result, error) {
	var all result
	began := time.Now()
	for _, suite := range suites {
		wanted := suite.topology == topology && (suite.short || !short)
		if !wanted || !suite.suits(s) {
			continue
		}
		if err := suite.test(ctx, s, &all); err != nil {
			return all, fmt.Errorf("%s, %s: %w", s, suite.packages, err)
		}
	}
	all.took = time.Since(began)
	return all, nil
}

// suits reports whether the server can do what the tests need.
func (u suite) suits(s *server) bool { return regexp.MustCompile(u.only).MatchString(s.String()) }

func (u suite) test(ctx context.Context, s *server, all *result) error {
	args := []string{"test", "-count=1", "-timeout=10m", "-parallel=16", "-json", "-run=" + u.run, "-skip=" + noMiniredis}
	cmd := exec.CommandContext(ctx, "go", append(args, strings.Fields(u.packages)...)...)
	cmd.Env = append(os.Environ(), "REDIS_SERVER="+s.path, "REDLATCH_REQUIRE=redis,cluster,sentinel",
		"REDLATCH_FULL=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failures := len(all.failed)
	if err := all.read(out, os.Stdout); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && len(all.failed) == failures {
		all.failed = append(all.failed, u.packages) // it does not build, or panicked
	}
	return nil
}

// event is a line that go test -json prints.
type event struct {
	Action, Test, Output string
}

// read counts the tests in the output of go test -json, and prints what failed tests have printed.
func (r *result) read(from io.Reader, to io.Writer) error {
	outputs := map[string]*strings.Builder{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(to, lines.Text()) // an error of the compiler
			continue
		}
		if outputs[e.Test] == nil {
			outputs[e.Test] = &strings.Builder{}
		}
		switch e.Action {
		case "output":
			outputs[e.Test].WriteString(e.Output)
		case "pass", "fail", "skip":
			r.end(e, outputs[e.Test].String(), to)
		}
	}
	return lines.Err()
}

func (r *result) end(e event, output string, to io.Writer) {
	if e.Action == "fail" {
		fmt.Fprint(to, output)
	}
	if e.Test == "" || strings.Contains(e.Test, "/") {
		return
	}
	r.ran++
	switch e.Action {
	case "fail":
		r.failed = append(r.failed, e.Test)
	case "skip":
		r.skips = append(r.skips, e.Test)
	}
}
