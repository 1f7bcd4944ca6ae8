//go:build !unix

package torture

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

const supported = false

var started = time.Now()

// monotonic is not shared by processes here.
func monotonic() int64 { return int64(time.Since(started)) }

func pauseGroup(*os.Process) error { return errors.ErrUnsupported }

func resumeGroup(*os.Process) error { return errors.ErrUnsupported }

func killGroup(p *os.Process) error { return p.Kill() }

// asGroup has no effect here: a client process ends when its input does.
func asGroup() *syscall.SysProcAttr { return nil }

// onEachProcessor runs f in a goroutine: it cannot choose the processor here.
func onEachProcessor(all *sync.WaitGroup, f func()) { all.Go(f) }
