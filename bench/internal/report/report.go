// Package report represents the results of a run, and writes them as JSON, tables and a picture.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/measure"
)

// Report is the results of one run.
type Report struct {
	Setup     Setup      `json:"setup"`
	Workloads []Workload `json:"workloads"`
}

// Setup describes the machine, the versions and the settings of a run.
type Setup struct {
	Date    time.Time         `json:"date"`
	Took    time.Duration     `json:"took"`
	Machine string            `json:"machine"`
	Cores   int               `json:"cores"`
	System  string            `json:"system"`
	Go      string            `json:"go"`
	Redis   string            `json:"redis"`
	GoRedis string            `json:"goRedis"`
	Forked  bool              `json:"forked"`
	Rounds  int               `json:"rounds"`
	Lib     map[string]string `json:"libraries"` // versions, by family
}

// Workload is the results of one workload: a row per contender and network.
type Workload struct {
	ID      string           `json:"id"`
	Title   string           `json:"title"`
	Shape   contend.Workload `json:"shape"`
	Rounds  int              `json:"rounds"`
	Forked  bool             `json:"forked"`  // one process per client
	Metrics []string         `json:"metrics"` // keys of the metrics to show; ratios are of the first
	Rows    []Row            `json:"rows"`
}

// Row is the results of one contender on one network.
type Row struct {
	Name    string `json:"name"`
	Family  string `json:"family"`
	Network string `json:"network"`
	Base    string `json:"base"` // name of the row that the ratios refer to, on the same network; may be Name

	Broke   string `json:"broke,omitempty"`   // violations that the guard found
	Error   string `json:"error,omitempty"`   // why a measurement failed
	Skipped string `json:"skipped,omitempty"` // why there is no measurement
	Note    string `json:"note,omitempty"`    // other remarks

	Values map[string]measure.Spread `json:"values"` // by metric, over the rounds
	Ratios map[string]measure.Spread `json:"ratios"` // by metric: ratio to the base in the same round
	Rounds []Figures                 `json:"rounds"`
}

// Figures is the metrics of one measurement, by key.
type Figures map[string]float64

// Bad reports whether the row failed or broke, so that its figures mean nothing.
func (r Row) Bad() bool { return r.Broke != "" || r.Error != "" }

// Summarize computes Values and Ratios. base is the rounds of the row's base. Rounds that failed,
// in either row, and bases of 0 have no ratio.
func (r *Row) Summarize(base []Figures) {
	values, ratios := map[string][]float64{}, map[string][]float64{}
	for i, figures := range r.Rounds {
		for key, v := range figures {
			values[key] = append(values[key], v)
			if i < len(base) && base[i] != nil && base[i][key] != 0 {
				ratios[key] = append(ratios[key], v/base[i][key])
			}
		}
	}
	r.Values, r.Ratios = spreads(values), spreads(ratios)
}

func spreads(all map[string][]float64) map[string]measure.Spread {
	result := make(map[string]measure.Spread, len(all))
	for key, values := range all {
		result[key] = measure.SpreadOf(values)
	}
	return result
}

// Bad reports whether any row is bad.
func (r *Report) Bad() bool {
	for _, w := range r.Workloads {
		for _, row := range w.Rows {
			if row.Bad() {
				return true
			}
		}
	}
	return false
}

// Write writes the report as JSON.
func (r *Report) Write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Read reads a report that Write wrote.
func Read(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("report: %s: %w", path, err)
	}
	return &r, nil
}
