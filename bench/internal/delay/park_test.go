package delay

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Many goroutines park for as long as they ask, at the same time.
func TestParkUntil(t *testing.T) {
	ParkUntil(time.Now().Add(-time.Second)) // over already
	const goroutines, sections, section = 50, 20, 5 * time.Millisecond
	began := time.Now()
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range sections {
				due := time.Now().Add(section)
				ParkUntil(due)
				assert.False(t, time.Now().Before(due))
			}
		})
	}
	wg.Wait()
	require.Less(t, time.Since(began), goroutines*sections*section/4, "they do not wait for each other")
}
