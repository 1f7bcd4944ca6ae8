package redistest

import (
	"os"
	"testing"
)

// MakeDir makes a directory for the files of servers, which the caller removes. It is in memory
// where the system has enough room there: a server answers nobody while its disk is slow, which on
// a busy machine may take seconds. What a killed server wrote stays in either place.
func MakeDir(pattern string) (string, error) {
	if parent := memoryDir(); parent != "" {
		if dir, err := os.MkdirTemp(parent, pattern); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", pattern)
}

// testDir makes a directory for the files of servers of t.
func testDir(t testing.TB) string {
	t.Helper()
	dir, err := MakeDir("redistest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
