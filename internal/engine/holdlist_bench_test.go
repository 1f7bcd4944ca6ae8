package engine

import (
	"fmt"
	"testing"
	"time"
)

// A client looks through its holds when an acquisition is refused, and the holder's id does not say
// which client made it. That must cost the same, however many holds of other names the client has.
// "add and remove" is the cost for each hold.
func BenchmarkHoldsOfAName(b *testing.B) {
	for _, holds := range []int{1, 100_000} {
		c := NewCore(Config{
			Owners:         Owners{IsOwn: func(string) (own, known bool) { return false, false }},
			Presence:       Presence{HoldAdded: func() {}},
			CommandTimeout: time.Second,
		})
		hold := func(name string) *Hold { return &Hold{r: &Resource{Core: c, Kind: "lock", Name: name}} }
		for i := range holds {
			c.holds.add(hold(fmt.Sprint("held-", i)))
		}
		another := hold("another")
		b.Run(fmt.Sprintf("refused/%d holds", holds), func(b *testing.B) {
			for b.Loop() {
				if c.owns(another.r, "me") || c.holdsSome(another.r) {
					b.Fatal("held")
				}
			}
		})
		b.Run(fmt.Sprintf("add and remove/%d holds", holds), func(b *testing.B) {
			for b.Loop() {
				c.holds.add(another)
				c.holds.remove(another)
			}
		})
	}
}
