// Package locktest helps to test code that uses locks, without a Redis server and with faults on
// demand.
//
//	func TestShip(t *testing.T) {
//		s := locktest.NewServer(t)
//		client, err := primitives.New(s.Client(t))
//		...
//		t.Cleanup(func() { _ = client.Close(t.Context()) }) // t.Context() has ended: waits for no hold
//		go ship(client, order)     // the code under test: acquires the lock, uses the hold's context
//		s.Lose(t, hold)            // the key is deleted: does ship stop?
//		s.LoseName(t, "orders:42") // the same without a hold at hand
//		s.Partition(true)          // Redis is unreachable: does ship stop before the lease expires?
//	}
//
// [Server] is a miniredis inside the test process. Its clock runs, so keys expire without help from
// the test. In a testing/synctest bubble it uses the bubble's fake clock, so an hour of leases
// takes milliseconds; see [Server.Client]. A bubble requires that its goroutines end with the test,
// so close each [primitives.Client]. The link may be cut at the end of a test: it is mended before
// the cleanups run. A hold that a test drops in a bubble leaks as in real time. The client finds it
// within a second of the fake clock once the garbage collector has run.
//
// [Link] cuts off a single client, where [Server.Partition] cuts off all of them. It works in front
// of any server, including a real Redis.
package locktest
