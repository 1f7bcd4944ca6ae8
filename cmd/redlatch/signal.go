package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// endingSignals end a command that has no other use for them. run passes them on to its child.
var endingSignals = append([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, userSignals...)

// untilSignal returns a context that the first of these signals ends, with a [signalError]. The second one
// ends the process, because a command may still be waiting for Redis to clean up.
func untilSignal(ctx context.Context, signals []os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	received := make(chan os.Signal, 1)
	catch(received, signals)
	go func() {
		select {
		case sig := <-received:
			signal.Stop(received)
			cancel(&signalError{sig.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(received)
		cancel(nil)
	}
}

// catch delivers signals to a channel, except signals that the process has ignored from its start, such
// as SIGHUP under nohup.
func catch(received chan<- os.Signal, signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(received, sig)
		}
	}
}
