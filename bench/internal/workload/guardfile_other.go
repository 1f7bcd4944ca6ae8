//go:build !unix

package workload

import "errors"

type guardFile struct {
	*Guard
	path string
}

var errNoSharedMemory = errors.New("workload: processes cannot share memory on this system")

func newGuardFile() (*guardFile, error) { return nil, errNoSharedMemory }

func openGuardFile(string) (*guardFile, error) { return nil, errNoSharedMemory }

func (g *guardFile) Close() error { return nil }
