//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package watch

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a terminal in raw mode, with the alternate screen.
type terminal struct {
	in, out *os.File
	saved   unix.Termios
	resized chan os.Signal
	ended   chan os.Signal // by a signal other than SIGINT
}

// isTerminal reports whether both files are terminals.
func isTerminal(in, out *os.File) bool {
	for _, f := range []*os.File{in, out} {
		if f == nil {
			return false
		}
		if _, err := unix.IoctlGetTermios(int(f.Fd()), getTermios); err != nil {
			return false
		}
	}
	return true
}

// openTerminal changes to raw mode and to the alternate screen. restore undoes both.
func openTerminal(in, out *os.File) (*terminal, error) {
	saved, err := unix.IoctlGetTermios(int(in.Fd()), getTermios)
	if err != nil {
		return nil, err
	}
	t := &terminal{in: in, out: out, saved: *saved, resized: make(chan os.Signal, 1), ended: make(chan os.Signal, 1)}
	signal.Notify(t.resized, syscall.SIGWINCH)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) { // as SIGHUP is under nohup; a terminal that is gone ends the view anyway
			signal.Notify(t.ended, sig)
		}
	}
	raw := t.saved
	raw.Iflag &^= unix.ICRNL | unix.INLCR | unix.IGNCR | unix.IXON | unix.BRKINT | unix.ISTRIP
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err = unix.IoctlSetTermios(int(in.Fd()), setTermios, &raw); err == nil {
		_, err = io.WriteString(out, enterScreen)
	}
	if err != nil {
		t.restore()
		return nil, err
	}
	return t, nil
}

// restore may be called again.
func (t *terminal) restore() {
	signal.Stop(t.resized)
	_, _ = io.WriteString(t.out, leaveScreen)
	_ = unix.IoctlSetTermios(int(t.in.Fd()), setTermios, &t.saved)
}

// endBy lets the signal have its usual effect: the process ends as if it had not been caught.
func endBy(sig os.Signal) {
	signal.Reset(sig)
	_ = unix.Kill(os.Getpid(), sig.(syscall.Signal))
	time.Sleep(time.Second) // the signal may arrive on another thread
}

// size returns the size of the terminal. One that does not know its size gets 80x24.
func (t *terminal) size() (columns, rows int) {
	ws, err := unix.IoctlGetWinsize(int(t.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return 80, 24
	}
	return int(ws.Col), int(ws.Row)
}

// Times of the keyboard.
const (
	pollKeys   = 100 * time.Millisecond // between checks whether to stop
	escapeTime = 50 * time.Millisecond  // after which an escape is a key, not the start of a sequence
)

// keys sends the keys that are pressed until ctx ends, or the terminal is gone.
func (t *terminal) keys(ctx context.Context, send func(key)) {
	var pending []byte
	buf := make([]byte, 256)
	fd := int(t.in.Fd())
	for ctx.Err() == nil {
		timeout := pollKeys
		if len(pending) > 0 {
			timeout = escapeTime
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		ready, err := unix.Poll(fds, int(timeout.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			send(keyInterrupt)
			return
		}
		if ready > 0 {
			n, err := unix.Read(fd, buf)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
				continue
			}
			if n <= 0 || err != nil {
				send(keyInterrupt) // the terminal is gone
				return
			}
			pending = append(pending, buf[:n]...)
		}
		var pressed []key
		pressed, pending = decode(pending, ready == 0)
		for _, k := range pressed {
			send(k)
		}
	}
}
