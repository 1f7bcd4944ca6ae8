package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A client finds its holds of a name, in whatever order they are added and removed.
func TestHoldsAreFoundByName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCore(Config{Presence: Presence{HoldAdded: func() {}}, CommandTimeout: time.Second})
		var holds []*Hold
		names := []string{"a", "b", "c"}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				h := &Hold{r: &Resource{Core: c, Kind: "lock", Name: rapid.SampledFrom(names).Draw(t, "name")}}
				require.True(t, c.holds.add(h))
				holds = append(holds, h)
			},
			"remove": func(t *rapid.T) {
				if len(holds) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(holds)-1).Draw(t, "which")
				c.holds.remove(holds[i])
				holds = slices.Delete(holds, i, i+1)
			},
			"": func(t *rapid.T) {
				for _, name := range names {
					var want, found []*Hold
					for _, h := range slices.Backward(holds) {
						if h.r.Name == name {
							want = append(want, h)
						}
					}
					c.holds.hasHold(name, func(h *Hold) bool {
						found = append(found, h)
						return false
					})
					require.Len(t, found, len(want))
					for i, h := range want {
						require.Same(t, h, found[i])
					}
				}
			},
		})
		require.LessOrEqual(t, len(c.holds.byName), len(holds), "no name is kept without a hold")
	})
}
