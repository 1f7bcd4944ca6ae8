//go:build !unix

package workload

import "errors"

type boardFile struct {
	*Board
	path string
}

var errNoSharing = errors.New("workload: processes cannot share a board on this system")

func newBoardFile() (*boardFile, error) { return nil, errNoSharing }

func openBoardFile(string) (*boardFile, error) { return nil, errNoSharing }

func (b *boardFile) Close() error { return nil }
