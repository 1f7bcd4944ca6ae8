package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// A bubble of testing/synctest has a clock of its own, so the test takes milliseconds.
func TestShipStopsWhenItsLockIsLost(t *testing.T) {
	for name, takeAway := range map[string]func(*testing.T, *locktest.Server){
		"by force":    func(t *testing.T, s *locktest.Server) { s.LoseName(t, "example:unittest:42") },
		"unreachable": func(_ *testing.T, s *locktest.Server) { s.Partition(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := locktest.NewServer(t)
				client, err := primitives.New(server.Client(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = client.Close(t.Context()) }) // t.Context() has ended: waits for no hold
				steps := 0
				err = ship(context.Background(), client, func() bool {
					steps++
					if steps == 3 {
						takeAway(t, server)
					}
					time.Sleep(10 * time.Second) // of the bubble's clock
					return steps == 20           // a ship that does not stop ends here
				})
				if !errors.Is(err, primitives.ErrLost) {
					t.Fatalf("want a loss, got %v", err)
				}
				if steps > 3+3 { // a lease lasts for 30 s
					t.Fatalf("the work went on for %d steps", steps)
				}
			})
		})
	}
}
