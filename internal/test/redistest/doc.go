// Package redistest provides servers for tests: miniredis with a running clock,
// real redis-servers (standalone, replicated, with Sentinel, as a cluster), and
// a proxy that injects network faults.
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
//
//	func TestIncr(t *testing.T) {
//		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
//			p := s.Proxy(t)
//			p.DropReplies(1, redistest.Named("INCR"))
//			rdb := p.Client(t) // retries, so the final value is 2
//			...
//		})
//	}
//
// # Choosing a server
//
//   - Each runs a test on Redis, or on Miniredis if there is no binary; with all
//     tests (Full) on both. It is the usual choice.
//   - Embedded works with testing/synctest: an hour of TTLs takes a millisecond.
//   - Redis and Cluster are shared by all tests of a test binary. Tests use
//     different key names (Name). They cannot pause, kill or restart the servers.
//   - Fresh, FreshCluster, FreshReplicatedCluster, Replicated and Sentinel start
//     servers for one test.
//
// The binary of real servers is $REDIS_SERVER, or else redis-server from the
// PATH. They listen on loopback, without persistence. They die with the test
// binary; on Linux also if it panics or times out. Without a binary a test is
// skipped, or fails if $REDLATCH_REQUIRE demands the server (see Missing).
//
// # The clock of miniredis
//
// Miniredis and Embedded enable ClockTTL, so TTLs follow time.Now: real time for
// Miniredis, the bubble's fake time for Embedded. A key expires at the start of
// the next command or accessor, at the nanosecond at which its TTL ends. A key
// whose PTTL would be 0 no longer exists. PTTL, EXISTS and TIME follow the same
// clock, also in scripts. There are two differences from Redis:
//
//   - Redis freezes the clock while a script runs, miniredis does not. On
//     Miniredis a key may expire between two calls of one script, and TIME may
//     change. In a bubble the clock does not advance while a script runs.
//   - PTTL rounds down to milliseconds and TTL to seconds. On Miniredis a TTL
//     that was just set to 10 s reads as 9999 and 9. In a bubble it reads as
//     10000 and 10.
//
// Neither server publishes anything when a key expires. Redis sends keyspace
// events only if configured to, and miniredis has none.
package redistest
