package watchdog

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// idle is a keeper that ignores its events.
type idle struct{ Lease }

func (*idle) LeaseRenewed(*Lease)        {}
func (*idle) LeaseUnknown(*Lease, error) {}
func (*idle) LeaseLost(*Lease, bool)     {}

// renewAll renews every lease at once.
func renewAll(_ context.Context, _ any, batch []Renewal) ([]State, error) {
	states := make([]State, len(batch))
	for i := range states {
		states[i] = Renewed
	}
	return states, nil
}

func BenchmarkKeepDrop(b *testing.B) {
	b.Run("floor: map, mutex and clock", func(b *testing.B) {
		var mu sync.Mutex
		m, k := map[*Lease]time.Time{}, new(idle)
		b.ReportAllocs()
		for b.Loop() {
			mu.Lock()
			m[&k.Lease] = time.Now().Add(ttl)
			mu.Unlock()
			mu.Lock()
			delete(m, &k.Lease)
			mu.Unlock()
		}
	})
	for _, bb := range []struct {
		name   string
		others int
	}{{"alone", 0}, {"with 50000 others", 50_000}} {
		b.Run(bb.name, func(b *testing.B) {
			d := New(renewAll)
			defer d.Close()
			for range bb.others {
				keepIdle(b, d, new(idle))
			}
			k, sched := new(idle), schedule()
			b.ReportAllocs()
			for b.Loop() {
				_ = d.Keep(&k.Lease, k, sched, time.Now().Add(ttl-margin))
				d.Drop(&k.Lease)
			}
		})
	}
}

func keepIdle(b *testing.B, d *Dog, k *idle) {
	b.Helper()
	require.NoError(b, d.Keep(&k.Lease, k, schedule(), time.Now().Add(ttl-margin)))
}

func BenchmarkConfirm(b *testing.B) {
	d := New(renewAll)
	defer d.Close()
	ks := make([]idle, 50_000)
	for i := range ks {
		keepIdle(b, d, &ks[i])
	}
	for i := 0; b.Loop(); i++ {
		d.Confirm(&ks[i%len(ks)].Lease, time.Now().Add(ttl))
	}
}

// BenchmarkHeld measures the memory and the goroutines of 50,000 leases.
func BenchmarkHeld(b *testing.B) {
	const n = 50_000
	measure := func() (bytes uint64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	hold := func() (bytes uint64, goroutines int) {
		bytes, goroutines = measure(), runtime.NumGoroutine()
		d := New(renewAll)
		defer d.Close()
		ks := make([]*idle, n)
		for i := range ks {
			ks[i] = new(idle)
			keepIdle(b, d, ks[i])
		}
		bytes, goroutines = measure()-bytes, runtime.NumGoroutine()-goroutines
		runtime.KeepAlive(ks)
		return bytes, goroutines
	}
	for b.Loop() {
		bytes, goroutines := hold()
		b.ReportMetric(float64(bytes)/n, "B/lease")
		b.ReportMetric(float64(goroutines), "goroutines")
	}
}
