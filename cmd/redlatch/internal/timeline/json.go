package timeline

import (
	"encoding/json"
	"io"
	"time"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/names"
)

// line is a span in JSON.
type line struct {
	Name    string    `json:"name"`
	Base64  string    `json:"name_base64,omitempty"`
	Kind    string    `json:"kind"`
	Process string    `json:"process"`
	What    string    `json:"what"`
	ID      string    `json:"id,omitempty"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	End     string    `json:"end"`
	Why     string    `json:"why,omitempty"`
}

// JSON writes each span as a line.
func (t *Timeline) JSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, n := range t.Names {
		for _, r := range n.Rows {
			for _, s := range r.Spans {
				err := encoder.Encode(line{
					n.Name, names.Base64(n.Name), n.Kind, r.Process, s.What, s.ID, s.From, s.To, s.End, s.Why,
				})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}
