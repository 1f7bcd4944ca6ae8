package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThePictureShowsAllPanels(t *testing.T) {
	text, err := os.ReadFile("../dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	from := time.Unix(1000, 0)
	to := from.Add(time.Minute)
	for i := range d.Panels {
		d.Panels[i].series = []series{{name: "<x>", points: []point{{from, 1}, {to, math.NaN()}, {to, 7}}}}
	}
	svg := picture(d.Panels, from, to, []fault{{"cut", from, to}})
	for _, p := range d.Panels {
		assert.Contains(t, svg, p.Title)
	}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for err == nil {
		_, err = decoder.Token()
	}
	require.ErrorIs(t, err, io.EOF)
}

func TestValuesAreShownInTheirUnit(t *testing.T) {
	for want, got := range map[string]string{
		"0.5 %": format(.005, "percentunit"), "12.35/s": format(12.345678, "ops"), "2.5 ms": format(.0025, "s"),
		"3 s": format(3, "s"), "7": format(7, "short"), "no data": format(math.NaN(), "s"),
	} {
		assert.Equal(t, want, got)
	}
	assert.InDelta(t, 5.0, scale([]series{{points: []point{{value: 3}, {value: math.NaN()}}}}), 0)
}
