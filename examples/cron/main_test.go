package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
	"github.com/redlatch/redlatch/locktest"
)

func TestJobRunsOncePerMinute(t *testing.T) {
	url, minute := "redis://"+locktest.NewServer(t).Addr(), time.Date(2030, 5, 6, 7, 8, 0, 0, time.UTC)
	var out lines.Lines
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {30 * time.Second, 1}, {time.Minute, 2}} {
		require.NoError(t, run(t.Context(), &out, url, minute.Add(tt.after)))
		require.Len(t, out.All(), tt.want)
	}
	require.Contains(t, out.All()[0], "sends the report")
}
