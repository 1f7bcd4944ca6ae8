package report

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

	"github.com/redlatch/redlatch/bench/internal/measure"
)

// sample returns a report with a row of each status.
func sample() *Report {
	w := Workload{
		ID: "W4", Title: "many want one <lock>; go-redis alone: a token", Rounds: 3, Metrics: []string{HandOffs, WaitP50},
		Rows: []Row{
			{
				Name: "go-redis alone", Family: "go-redis", Network: "unix", Base: "go-redis alone",
				Rounds: []Figures{
					{HandOffs: 100, WaitP50: 1e6}, {HandOffs: 200, WaitP50: 1e6}, {HandOffs: 400, WaitP50: 0},
				},
			},
			{
				Name: "redlatch", Family: "redlatch", Network: "unix", Base: "go-redis alone",
				Rounds: []Figures{
					{HandOffs: 50, WaitP50: 2e6}, {HandOffs: 120, WaitP50: 3e6}, {HandOffs: 280, WaitP50: 4e6},
				},
			},
			{
				Name: "failed", Family: "bsm", Network: "unix", Base: "go-redis alone", Error: "connection refused",
				Rounds: []Figures{{HandOffs: 10}, nil, {HandOffs: 40}},
			},
			{
				Name: "broken", Family: "bsm", Network: "unix", Base: "go-redis alone", Broke: "2 overlaps",
				Rounds: []Figures{{HandOffs: 10}, {HandOffs: 10}, {HandOffs: 10}},
			},
			{Name: "skipped", Family: "redisson", Network: "tcp", Base: "go-redis alone", Skipped: "no Java"},
			{
				Name: "stuck", Family: "redisson", Network: "tcp", Base: "go-redis alone", Note: "3 waits stuck",
				Rounds: []Figures{{HandOffs: 10}},
			},
		},
	}
	base := w.Rows[0].Rounds
	for i := range w.Rows {
		w.Rows[i].Summarize(base)
	}
	setup := Setup{
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: time.Minute,
		Machine: "a machine", Cores: 2, System: "linux/amd64", Go: "go1.26", Redis: "7.0.15", GoRedis: "v9.23.0",
		Lib: map[string]string{"redlatch": "v1", "bsm": "v0.10.0"},
	}
	return &Report{Setup: setup, Workloads: []Workload{w}}
}

func TestSummarizeComparesRoundByRound(t *testing.T) {
	rows := sample().Workloads[0].Rows
	require.Equal(t, measure.Spread{Median: 200, Min: 100, Max: 400}, rows[0].Values[HandOffs])
	require.Equal(t, measure.Spread{Median: 1, Min: 1, Max: 1}, rows[0].Ratios[HandOffs])
	require.Equal(t, measure.Spread{Median: 0.6, Min: 0.5, Max: 0.7}, rows[1].Ratios[HandOffs],
		"each round is compared with the same round of the base")
	require.Equal(t, measure.Spread{Median: 2.5, Min: 2, Max: 3}, rows[1].Ratios[WaitP50], "a base of 0 has no ratio")
	require.Equal(t, measure.Spread{Median: 0.1, Min: 0.1, Max: 0.1}, rows[2].Ratios[HandOffs],
		"a failed round has no ratio")
}

func TestBadReportsFailedAndBrokenRows(t *testing.T) {
	r := sample()
	require.True(t, r.Bad())
	r.Workloads[0].Rows = r.Workloads[0].Rows[:2]
	require.False(t, r.Bad())
}

func TestTablesShowRatiosAndNotes(t *testing.T) {
	var out strings.Builder
	require.NoError(t, sample().Tables(&out))
	for _, want := range []string{
		"W4  many want one <lock>; go-redis alone: a token (median of 3 rounds)",
		"ratio of hand-offs/s", "0.60 (0.50..0.70)", "3 ms",
		"FAILED", "failed (unix): FAILED: connection refused", "BROKE", "broken (unix): BROKE: 2 overlaps",
		"skipped (tcp): skipped: no Java", "stuck (tcp): 3 waits stuck",
	} {
		require.Contains(t, out.String(), want)
	}
}

func TestMarkdownShowsSetupAndRatios(t *testing.T) {
	text := sample().Markdown()
	require.Contains(t, text, "a machine, 2 cores, linux/amd64. Redis 7.0.15, go1.26, go-redis v9.23.0. "+
		"2026-01-02 03:04 UTC, took 60 s.\nbsm v0.10.0, redlatch v1.\n")
	require.Contains(t, text, "|---|---:|---:|---:|\n")
	require.Contains(t, text, "| redlatch (unix) | 0.60 (0.50..0.70) | 120 | 3 ms |\n")
}

func TestSVGIsWellFormed(t *testing.T) {
	picture := sample().SVG()
	decoder, texts := xml.NewDecoder(strings.NewReader(picture)), ""
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "well-formed")
		if chars, ok := token.(xml.CharData); ok {
			texts += string(chars)
		}
	}
	for _, want := range []string{
		"W4  many want one <lock>", "redlatch (unix)", "0.60 (0.50..0.70)   120", "BROKE", "FAILED",
		"v0.10.0", "2026-01-02",
	} {
		require.Contains(t, texts, want)
	}
	require.NotContains(t, texts, "skipped")
}

func TestBarsThatAreCutHaveABreak(t *testing.T) {
	for ratio, cut := range map[float64]bool{0.5: false, 2: false, 2.1: true, 38: true} {
		row := Row{
			Name: "redlatch", Family: "redlatch", Base: "go-redis alone",
			Values: map[string]measure.Spread{HandOffs: {Median: 100}},
			Ratios: map[string]measure.Spread{HandOffs: {Median: ratio, Min: ratio, Max: ratio}},
		}
		var picture strings.Builder
		Workload{Metrics: []string{HandOffs}, Rows: []Row{row}}.draw(&picture, 0)
		require.Equal(t, cut, strings.Contains(picture.String(), `class="line break"`), "%v", ratio)
	}
}

func TestPerformanceInvertsMetricsWhereLessIsBetter(t *testing.T) {
	row := Row{Ratios: map[string]measure.Spread{
		HandOffs: {Median: 2, Min: 1, Max: 4},
		WaitP50:  {Median: 2, Min: 1, Max: 4},
	}}
	require.Equal(t, measure.Spread{Median: 2, Min: 1, Max: 4}, row.performance(HandOffs))
	require.Equal(t, measure.Spread{Median: 0.5, Min: 0.25, Max: 1}, row.performance(WaitP50))
	require.Equal(t, measure.Spread{Median: 1, Min: 1, Max: 1}, row.performance(Drain))
}

func TestReadReturnsWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	want := sample()
	require.NoError(t, want.Write(path))
	got, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = Read(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFillWritesTablesBetweenMarkers(t *testing.T) {
	r := sample()
	r.Workloads = r.Workloads[:1]
	for _, id := range []string{"W5", "W6"} {
		w := r.Workloads[0]
		w.ID = id
		r.Workloads = append(r.Workloads, w)
	}
	const plain, end = "<!-- results -->", "<!-- end of results -->"
	const named = "<!-- results of W6 W4 -->"
	for _, tt := range []struct {
		name, page string
		want       []string // in this order
		err        string
	}{
		{
			"all", "a\n" + plain + "\nold\n" + end + "\nb\n",
			[]string{"a\n" + plain + "\n\na machine, ", "### W4", "### W5", "### W6", "|\n", "\n\n" + end + "\nb\n"}, "",
		},
		{
			"named workloads apart", named + "old" + end + "\nb\n" + plain + end,
			[]string{named + "\n\n### W6", "### W4", end + "\nb\n" + plain, "a machine", "### W5", end}, "",
		},
		{"no results", "<!-- results of W7 -->" + end, nil, "no results of W7"},
		{"named twice", named + end + named + end, nil, "no results of W6"},
		{"no begin marker", "a\n" + end + "\n", nil, "no pairs"},
		{"no end marker", "a\n" + plain + "\n", nil, "no pairs"},
		{"one end marker for two", plain + named + end, nil, "no pairs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "page.md")
			require.NoError(t, os.WriteFile(path, []byte(tt.page), 0o600))
			err := r.Fill(path)
			text, readErr := os.ReadFile(path)
			require.NoError(t, readErr)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				require.Equal(t, tt.page, string(text), "unchanged")
				return
			}
			require.NoError(t, err)
			rest, found := string(text), false
			for _, want := range tt.want {
				_, rest, found = strings.Cut(rest, want)
				require.True(t, found, "%q in %s", want, text)
			}
			require.Empty(t, rest)
			require.NotContains(t, string(text), "old")
			require.Equal(t, 3, strings.Count(string(text), "### W"))
			require.NoError(t, r.Fill(path))
			again, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(text), string(again), "the markers are still there")
		})
	}
}

func TestFormats(t *testing.T) {
	for _, tt := range []struct {
		got, want string
	}{
		{number(0), "0"}, {number(7), "7"}, {number(0.123), "0.12"}, {number(0.00123), "0.0012"},
		{number(12.34), "12.3"}, {number(123.4), "123"}, {number(1234.5), "1,234"}, {number(12345678), "12,345,678"},
		{number(-1234567), "-1,234,567"}, {number(-123456), "-123,456"},
		{formatRatio(measure.Spread{Median: 9.87, Min: 0.123, Max: 1234.5}), "9.87 (0.12..1,234)"},
		{duration(1500), "1.50 µs"}, {duration(2.5e6), "2.50 ms"}, {duration(3e9), "3 s"}, {size(64), "64 B"},
	} {
		require.Equal(t, tt.want, tt.got)
	}
}
