package redisson

import (
	"sync"
	"testing"
)

// Shared is one driver for all tests of a test binary. The first call of Driver starts it. TestMain
// closes it:
//
//	var java redisson.Shared
//
//	func TestMain(m *testing.M) {
//		code := m.Run()
//		_ = java.Close()
//		os.Exit(code)
//	}
//
// A test that kills or pauses its driver must use Start instead.
type Shared struct {
	Options Options // must not change after the first call of Driver

	mu     sync.Mutex
	driver *Driver
}

// Driver returns the driver. It starts a new one if the last one has ended. Without Java the test
// ends as described at redistest.Missing.
func (s *Shared) Driver(t testing.TB) *Driver {
	t.Helper()
	needed(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver != nil && s.driver.running() {
		return s.driver
	}
	d, err := Open(t.Context(), s.Options)
	requireBuilt(t, err)
	s.driver = d
	return d
}

// Close closes the driver if it was started.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver == nil {
		return nil
	}
	return s.driver.Close()
}

func (d *Driver) running() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended == nil
}
