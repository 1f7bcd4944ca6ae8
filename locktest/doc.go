// Package locktest helps to test code that uses locks: without a Redis, and with the bad days on demand.
//
//	func TestShip(t *testing.T) {
//		s := locktest.NewServer(t)
//		client, err := primitives.New(s.Client(t))
//		...
//		go ship(client, order)     // your code: takes the lock, works with the hold's context
//		s.Lose(t, hold)            // somebody deleted the key: does ship stop?
//		s.Partition(true)          // nobody reaches Redis: does ship stop before the lease is over?
//	}
//
// The [Server] is a miniredis inside the test process. Its clock runs: keys expire by themselves. Inside a testing/synctest bubble
// it runs on the bubble's clock, so that an hour of leases passes in a moment; see [Server.Client].
//
// A [Link] does to one client what [Server.Partition] does to all. It works in front of any server, a real Redis too.
package locktest
