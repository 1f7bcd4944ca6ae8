package scale

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/bench/internal/server"
)

func TestTablesGrowInSteps(t *testing.T) {
	for _, tt := range []struct {
		keys, nodes int
		buckets     int64
	}{
		{1, 1, 1}, {1000, 1, 1024}, {1024, 1, 1024}, {1025, 1, 2048}, {3000, 3, 3 * 1024},
	} {
		require.Equal(t, 16*tt.buckets, tables(tt.keys, tt.nodes), "%d keys on %d nodes", tt.keys, tt.nodes)
	}
}

func TestModelOfRenewals(t *testing.T) {
	c := Constants{
		IdleServer: 100, IdleClient: 10,
		RenewCommandServer: 50, RenewLockServer: 4, RenewCommandClient: 100, RenewLockClient: 2,
	}
	// 1,000 locks with a TTL of 3 s are 1,000 renewals a second.
	require.Equal(t, cost{100 + 1000*(4+0.5), 10 + 1000*(2+1)}, c.renewing(1000, 3*time.Second, 100))
	require.Equal(t, cost{100 + 1000*(4+50), 10 + 1000*(2+100)}, c.renewing(1000, 3*time.Second, 1))
	// Beyond a thousand commands a second, commands share wake-ups.
	c.WakeUpServer, c.WakeUpClient = 30, 70
	require.Equal(t, cost{100 + 3000*(4+50) - 2000*30, 10 + 3000*(2+100) - 2000*70}, c.renewing(3000, 3*time.Second, 1))
}

func testReport() *Report {
	r := &Report{Constants: []Constants{{System: "one server"}, {System: "cluster of 3"}}}
	for _, n := range []int{10, 1000} {
		r.Checks = append(r.Checks, Check{
			System: "one server", Curve: curveServerCPU, What: "held locks", N: n,
			Measured: 1234567, Model: 1000000, Unit: "µs/s",
		})
	}
	r.Soaks = []Soak{{System: "one server", Holds: 100000, Lost: 3}}
	return r
}

func TestPageIsFilledBetweenItsMarkers(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	old := "before\n<!-- scale -->\nearlier\n<!-- end of scale -->\nafter\n"
	require.NoError(t, os.WriteFile(page, []byte(old), 0o600))
	require.NoError(t, testReport().Fill(page))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, want := range []string{"before", "| 1,234,567 | 1,000,000 | 1.23 |", "| 100,000 |", "after"} {
		require.Contains(t, string(text), want)
	}
	require.NotContains(t, string(text), "earlier")
	require.NoError(t, os.WriteFile(page, []byte("no markers"), 0o600))
	require.ErrorContains(t, testReport().Fill(page), "no markers")
}

func TestPictureIsXMLWithADotForEachCheck(t *testing.T) {
	picture := testReport().SVG()
	dots := 0
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			dots++
		}
	}
	require.Equal(t, 2+2, dots, "two systems in the legend, two checks")
}

func TestReportIsReadAsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	require.NoError(t, testReport().Write(path))
	r, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, testReport(), r)
}

// Each measurement, at a tiny size: nothing fails, nothing is lost, and the counts are right.
func TestMeasurements(t *testing.T) {
	if _, err := server.Binary(); err != nil {
		t.Skip("no redis-server")
	}
	ctx := t.Context()
	s, err := startSingle(ctx)
	require.NoError(t, err)
	defer s.close()

	// Redis frees the buffers of the first connections during this. So it needs the whole time to
	// settle: the locks take less memory than the buffers.
	h, err := s.hold(ctx, "held", 500, 600*time.Millisecond, 600*time.Millisecond)
	require.NoError(t, err)
	require.Zero(t, h.lost)
	require.Positive(t, h.serverBytes)
	require.GreaterOrEqual(t, h.renewing.scripts, int64(10), "two rounds at least, of five commands")

	s.settle = 300 * time.Millisecond
	w, err := s.wait(ctx, 20, 3, 2*time.Second)
	require.NoError(t, err)
	require.Equal(t, 60, w.waiters)
	require.InDelta(t, 20, w.idle.perSecond(w.idle.scripts), 10, "a poll a second for each name")

	crowd, err := s.contendFor(ctx, 3, 200*time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, crowd.handOffs)
	keys, err := s.nodes[0].Admin.Keys(ctx, "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		require.Contains(t, key, "{", "no lock is left")
	}
}
