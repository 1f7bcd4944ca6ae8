package watchdog

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type idle struct{ Lease }

func (*idle) LeaseRenewed(*Lease)        {}
func (*idle) LeaseUnknown(*Lease, error) {}
func (*idle) LeaseLost(*Lease, bool)     {}

func renewAll(_ context.Context, _ any, batch []Ask) ([]State, error) {
	states := make([]State, len(batch))
	for i := range states {
		states[i] = Renewed
	}
	return states, nil
}

func BenchmarkKeepDrop(b *testing.B) {
	b.Run("floor: a map under a mutex, and the time", func(b *testing.B) {
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
		beside int
	}{{"alone", 0}, {"beside 50000", 50_000}} {
		b.Run(bb.name, func(b *testing.B) {
			d := New(renewAll)
			defer d.Close()
			for range bb.beside {
				keep50k(b, d, new(idle))
			}
			k, tm := new(idle), terms()
			b.ReportAllocs()
			for b.Loop() {
				_ = d.Keep(&k.Lease, k, tm, time.Now().Add(ttl-margin))
				d.Drop(&k.Lease)
			}
		})
	}
}

func keep50k(b *testing.B, d *Dog, k *idle) {
	b.Helper()
	require.NoError(b, d.Keep(&k.Lease, k, terms(), time.Now().Add(ttl-margin)))
}

func BenchmarkConfirm(b *testing.B) {
	d := New(renewAll)
	defer d.Close()
	ks := make([]idle, 50_000)
	for i := range ks {
		keep50k(b, d, &ks[i])
	}
	for i := 0; b.Loop(); i++ {
		d.Confirm(&ks[i%len(ks)].Lease, time.Now().Add(ttl))
	}
}

// What 50,000 leases cost in all: their structs, the Dog's book-keeping, goroutines.
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
			keep50k(b, d, ks[i])
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
