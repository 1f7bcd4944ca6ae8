// Package report is what a run found, as JSON, as tables and as a picture.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/measure"
)

// Report is one run.
type Report struct {
	Setup     Setup      `json:"setup"`
	Workloads []Workload `json:"workloads"`
}

// Setup is what the run stood on.
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
	Lib     map[string]string `json:"libraries"` // versions by family
}

// Workload is one of them, with a row for each contender and network.
type Workload struct {
	ID      string           `json:"id"`
	Title   string           `json:"title"`
	Shape   contend.Workload `json:"shape"`
	Rounds  int              `json:"rounds"`
	Forked  bool             `json:"forked"`  // each client was a process of its own
	Metrics []string         `json:"metrics"` // the keys of those that matter here; ratios are of the first
	Rows    []Row            `json:"rows"`
}

// Row is one contender on one network.
type Row struct {
	Name    string `json:"name"`
	Family  string `json:"family"`
	Network string `json:"network"`
	Base    string `json:"base"` // the row of the same network that the ratios are to; its own name for a floor

	Broke   string `json:"broke,omitempty"`   // what the guard saw
	Error   string `json:"error,omitempty"`   // why it was not measured to the end
	Skipped string `json:"skipped,omitempty"` // why it was not measured at all
	Note    string `json:"note,omitempty"`    // what else was seen

	Values map[string]measure.Spread `json:"values"` // by metric: over the rounds
	Ratios map[string]measure.Spread `json:"ratios"` // by metric: to the base in the same round, over the rounds
	Rounds []Figures                 `json:"rounds"`
}

// Figures are the metrics of one measurement, by key.
type Figures map[string]float64

// Bad tells whether the row must not be trusted.
func (r Row) Bad() bool { return r.Broke != "" || r.Error != "" }

// Summary fills Values and Ratios. base has the rounds of the row's base.
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

// Bad tells whether any row must not be trusted.
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

// Read reads what Write wrote.
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
