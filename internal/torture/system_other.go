//go:build !unix

package torture

import (
	"errors"
	"os"
	"time"
)

const supported = false

var started = time.Now()

// monotonic is not shared by processes here.
func monotonic() int64 { return int64(time.Since(started)) }

func pause(*os.Process) error { return errors.ErrUnsupported }

func resume(*os.Process) error { return errors.ErrUnsupported }
