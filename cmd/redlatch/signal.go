package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// endingSignals end a command that has no other use for them. run passes them on to its child.
var endingSignals = append([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, userSignals...)

// untilSignal returns a context that the first of these signals ends, with a [signalError]. A later
// one ends the process, because a command may still be waiting for Redis to clean up.
func untilSignal(ctx context.Context, signals []os.Signal) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	received := make(chan os.Signal, 1)
	catch(received, signals)
	go func() {
		sig := <-received
		stopSoon(received)
		cancel(&signalError{sig.(syscall.Signal)})
	}()
	return ctx
}

// stopSoon is signal.Stop, but repeatAfter later. Signals often come twice: timeout(1) signals its
// command and then its group, and the shell and the kernel both report a closed terminal. The
// second one must not end the clean-up.
func stopSoon(received chan<- os.Signal) {
	time.AfterFunc(repeatAfter, func() { signal.Stop(received) })
}

const repeatAfter = time.Second // a signal that follows another one sooner is the same request

// catch delivers signals to a channel, except signals that the process has ignored from its start,
// such as SIGHUP under nohup.
func catch(received chan<- os.Signal, signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(received, sig)
		}
	}
}
