package scale

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"

	"github.com/redlatch/redlatch/bench/internal/report"
)

// Report is the results of one run.
type Report struct {
	Setup     report.Setup `json:"setup"`
	Constants []Constants  `json:"constants"`
	Checks    []Check      `json:"checks"`
	Soaks     []Soak       `json:"soaks,omitempty"`
}

// Read reads a report that Write has written.
func Read(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("scale: %w", err)
	}
	r := new(Report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("scale: %s: %w", path, err)
	}
	return r, nil
}

// Write writes the report as JSON.
func (r *Report) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	return nil
}

// Markdown returns the tables.
func (r *Report) Markdown() string {
	var b strings.Builder
	s := &r.Setup
	fmt.Fprintf(&b, "Measured on %s: %s, %d cores, %s, Redis %s, go-redis %s.\n\n",
		s.Date.UTC().Format("2006-01-02"), s.Machine, s.Cores, s.Go, s.Redis, s.GoRedis)
	r.constantTable(&b)
	r.checkTable(&b)
	if len(r.Soaks) > 0 {
		b.WriteString("\n| On | Held locks | TTL | For | Lost | Commands/s | Locks in each |" +
			" Server processors | Client processors |\n|---|---|---|---|---|---|---|---|---|\n")
		for _, k := range r.Soaks {
			fmt.Fprintf(&b, "| %s | %s | %v | %v | %d | %.0f | %.1f | %.2f | %.2f |\n", k.System, number(float64(k.Holds)),
				k.TTL, k.Length, k.Lost, k.Scripts, k.PerCommand, k.ServerCPU, k.ClientCPU)
		}
	}
	return b.String()
}

// constantTable adds the constants, with a column for each system.
func (r *Report) constantTable(b *strings.Builder) {
	rows := []struct {
		name, unit string
		value      func(c *Constants) float64
	}{
		{"acquire and release of a free lock: server", "µs", func(c *Constants) float64 { return c.PairServer }},
		{"acquire and release of a free lock: client", "µs", func(c *Constants) float64 { return c.PairClient }},
		{"a refused attempt: server", "µs", func(c *Constants) float64 { return c.Refused }},
		{"a hand-off between two clients: server", "µs", func(c *Constants) float64 { return c.PairHandOff }},
		{"a hand-off between more clients: server", "µs", func(c *Constants) float64 { return c.HandOff }},
		{"renewal, for each lock: server", "µs", func(c *Constants) float64 { return c.RenewLockServer }},
		{"renewal, for each command: server", "µs", func(c *Constants) float64 { return c.RenewCommandServer }},
		{"renewal, for each lock: client", "µs", func(c *Constants) float64 { return c.RenewLockClient }},
		{"renewal, for each command: client", "µs", func(c *Constants) float64 { return c.RenewCommandClient }},
		{"the wake-up in it: server", "µs", func(c *Constants) float64 { return c.WakeUpServer }},
		{"the wake-up in it: client", "µs", func(c *Constants) float64 { return c.WakeUpClient }},
		{"the poll of a name with waiters: server", "µs", func(c *Constants) float64 { return c.PollServer }},
		{"the poll of a name with waiters: client", "µs", func(c *Constants) float64 { return c.PollClient }},
		{"a second of the idle servers", "µs", func(c *Constants) float64 { return c.IdleServer }},
		{"a second of a client with one hold", "µs", func(c *Constants) float64 { return c.IdleClient }},
		{"a held lock: server, and 16 for each bucket", "bytes", func(c *Constants) float64 { return c.HoldServer }},
		{"a held lock with its handle: client", "bytes", func(c *Constants) float64 { return c.HoldClient }},
		{"a name with waiters: client", "bytes", func(c *Constants) float64 { return c.NameClient }},
		{"a waiter with its goroutine: client", "bytes", func(c *Constants) float64 { return c.WaiterClient }},
		{"a name with waiters: server", "bytes", func(c *Constants) float64 { return c.NameServer }},
		{"a remembered pair of a semaphore: server, and 16 for each bucket", "bytes",
			func(c *Constants) float64 { return c.RequestServer }},
	}
	b.WriteString("| Cost |")
	for _, c := range r.Constants {
		fmt.Fprintf(b, " %s |", c.System)
	}
	b.WriteString(" Unit |\n|---|" + strings.Repeat("---|", len(r.Constants)) + "---|\n")
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |", row.name)
		for i := range r.Constants {
			fmt.Fprintf(b, " %s |", number(row.value(&r.Constants[i])))
		}
		fmt.Fprintf(b, " %s |\n", row.unit)
	}
}

func (r *Report) checkTable(b *strings.Builder) {
	b.WriteString("\n| On | Figure | Size | Measured | Model | Measured / model | |\n|---|---|---|---|---|---|---|\n")
	for _, c := range r.Checks {
		fmt.Fprintf(b, "| %s | %s, %s | %s %s | %s | %s | %.2f | %s |\n", c.System, c.Curve, c.Unit,
			number(float64(c.N)), c.What, number(c.Measured), number(c.Model), c.Measured/c.Model, c.Note)
	}
}

// number formats v with three digits or more, and with commas.
func number(v float64) string {
	if math.Abs(v) < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// section matches a pair of markers in a page, and the text between them.
var section = regexp.MustCompile(`(?s)(<!-- scale -->).*?(<!-- end of scale -->)`)

// Fill writes the tables between the markers of a Markdown file.
func (r *Report) Fill(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	if !section.Match(old) {
		return fmt.Errorf("scale: %s: %w", path, errors.New("no markers <!-- scale --> and <!-- end of scale -->"))
	}
	text := section.ReplaceAllFunc(old, func([]byte) []byte {
		return []byte("<!-- scale -->\n\n" + strings.TrimSpace(r.Markdown()) + "\n\n<!-- end of scale -->")
	})
	if err := os.WriteFile(path, text, 0o600); err != nil { //nolint:gosec // the caller names the file
		return fmt.Errorf("scale: %w", err)
	}
	return nil
}
