package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// Exit codes. Scripts depend on them: see doc/cli.md.
const (
	exitFailed        = 1   // a check failed, or something is not held or not there
	exitUsage         = 2   // the command line is wrong, or asks for something that cannot be
	exitUnreachable   = 3   // Redis does not answer, or refuses
	exitNotAcquired   = 75  // EX_TEMPFAIL
	exitLost          = 76  // the lock was lost while the command ran
	exitNotExecutable = 126 // of the command that run should start
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of the signal
)

const exitCodes = "Exit codes: 0 done; 1 a check failed, or something is not held; 2 bad use; 3 Redis is\n" +
	"unreachable or refuses; 75 not acquired in time; 76 lost while the command ran; 128+n ended by signal n."

// codedError is an error with an exit code of its own. A nil err prints nothing.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return "exit code " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func badUsage(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

func failure(format string, args ...any) error {
	return &codedError{exitFailed, fmt.Errorf(format, args...)}
}

// signalError is the reason why a signal ended the command.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "ended by signal: " + e.signal.String() }

// finish prints err on stderr and returns the exit code.
func finish(ctx context.Context, err error, asJSON bool, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	code := exitCode(ctx, err)
	if coded, ok := errors.AsType[*codedError](err); ok && coded.err == nil {
		return code
	}
	text := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "redlatch: ")
	if asJSON {
		_ = json.NewEncoder(stderr).Encode(struct {
			Error string `json:"error"`
			Code  int    `json:"code"`
		}{text, code})
		return code
	}
	fmt.Fprintln(stderr, "redlatch:", harmless(text))
	return code
}

// exitCode returns the exit code of an error. If a signal has ended ctx, it is that signal's,
// unless the error has a code of its own.
func exitCode(ctx context.Context, err error) int {
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	sig, ok := errors.AsType[*signalError](err)
	if !ok {
		sig, ok = errors.AsType[*signalError](context.Cause(ctx))
	}
	_, lacksCommand := errors.AsType[*scripts.LackingError](err)
	switch {
	case ok:
		return exitSignal + int(sig.signal)
	case lacksCommand: // Redis refuses
		return exitUnreachable
	case errors.Is(err, primitives.ErrInvalid), errors.Is(err, primitives.ErrUnsupported),
		errors.Is(err, primitives.ErrForeign):
		return exitUsage
	case errors.Is(err, primitives.ErrUnavailable): // even if somebody else held it before Redis fell silent
		return exitUnreachable
	case errors.Is(err, primitives.ErrNotAcquired):
		return exitNotAcquired
	case errors.Is(err, primitives.ErrLost):
		return exitLost
	case errors.Is(err, primitives.ErrNotHeld):
		return exitFailed
	case isOfRedis(err):
		return exitUnreachable
	}
	return exitFailed
}

// notOurs gives the error for data of another program the exit code of a command that found nothing
// to do.
func notOurs(err error) error {
	if errors.Is(err, primitives.ErrForeign) {
		return &codedError{exitFailed, err}
	}
	return err
}

// withAdvice adds to an error what the user can do about it: about rights that an ACL does not
// grant, about a cluster for which the flag is missing, and about a lock of another kind.
func withAdvice(err error, command string) error {
	if redis.HasErrorPrefix(err, "MOVED ") {
		return fmt.Errorf("%w; this is a server of a cluster: use --cluster", err)
	}
	if err == nil {
		return nil
	}
	text := err.Error()
	if errors.Is(err, primitives.ErrForeign) && strings.Contains(text, "holds a read-write lock") {
		return fmt.Errorf("%w, or give --kind write or --kind read", err)
	}
	if !redisutil.LacksRights(err) {
		return err
	}
	lacksGetrange := strings.Contains(text, "'getrange'") || strings.Contains(text, "executing the script") // in 7.0
	advice := "redlatch doctor names the rights that this user lacks"
	switch {
	case strings.Contains(text, "one of the keys"):
		advice = "this user may not use the name: check --prefix"
	case command == "ls" && (lacksGetrange || strings.Contains(text, "'scan'")):
		advice = "ls needs +scan and +getrange, which redlatch acl leaves out, because SCAN shows the names of all " +
			"keys; to grant them: ACL SETUSER <user> +scan +getrange"
	case lacksGetrange && command == "inspect":
		advice = "without --kind, inspect needs +getrange, and for semaphores, permits and latches with it, too; redlatch " +
			"acl leaves it out: give the --kind of a lock, or grant it: ACL SETUSER <user> +getrange"
	case lacksGetrange && slices.Contains([]string{"release", "force-release"}, command):
		advice = "without --kind, " + command + " needs +getrange, which redlatch acl leaves out: give --kind"
	case lacksGetrange && slices.Contains([]string{kindSemaphore, kindPermits}, command):
		advice = command + " info needs +getrange, which redlatch acl leaves out; to grant it: ACL SETUSER <user> +getrange"
	}
	return fmt.Errorf("%w; %s", err, advice)
}

// isOfRedis reports whether err is an error reply, or a failure to get a reply. Those are all
// errors of the library that none of its own errors matches.
func isOfRedis(err error) bool {
	if _, ok := errors.AsType[*primitives.Error](err); ok {
		return true
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok { // a context's deadline is one, too
		return true
	}
	return slices.ContainsFunc([]error{redis.ErrClosed, redis.ErrPoolTimeout, io.EOF, io.ErrUnexpectedEOF},
		func(target error) bool { return errors.Is(err, target) })
}
