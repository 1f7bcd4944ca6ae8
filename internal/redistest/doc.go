// Package redistest provides servers for tests: miniredis on a running clock,
// real redis-servers alone, with replicas, under sentinels and as a cluster, and
// a proxy that does to their connections what networks do.
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
//
//	func TestIncr(t *testing.T) {
//		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
//			p := s.Proxy(t)
//			p.DropReplies(1, redistest.Named("INCR"))
//			rdb := p.Client(t) // retries: the key ends up at 2
//			...
//		})
//	}
//
// # Which server
//
//   - Each runs a test on Miniredis and on Redis: the usual choice.
//   - Embedded goes with testing/synctest: an hour of TTLs in a millisecond.
//   - Redis and Cluster are shared by the tests of a test binary, which keep apart
//     by key names (Name). They cannot be paused, killed or restarted.
//   - Fresh, FreshCluster, Replicated and Sentinel belong to one test.
//
// Real servers are started from $REDIS_SERVER, else from redis-server in the
// PATH, on loopback, without persistence. They die with the test binary, on
// Linux also when that panics or runs into its time limit. Without a binary a test
// is skipped; $REDLATCH_REQUIRE makes that a failure (see Missing).
//
// # The clock of miniredis
//
// Both kinds of miniredis have ClockTTL on, so TTLs run with time.Now: real time
// for Miniredis, the bubble's for Embedded. Keys expire at the start of whatever
// command or accessor comes next, on the nanosecond their TTL is used up; at PTTL
// 0 a key is gone. PTTL, EXISTS and TIME all follow that clock, inside scripts
// too. Two things differ from Redis:
//
//   - Redis freezes the clock while a script runs; miniredis does not. On Miniredis
//     a key may expire between two calls of one script, and TIME may move. In a
//     bubble time stands still while a script runs.
//   - PTTL rounds down to whole milliseconds and TTL to whole seconds, so that
//     a TTL just set to 10 s reads as 9999 and 9 on Miniredis. In a bubble it reads
//     10000 and 10.
//
// Nothing is published when a key expires: neither server sends keyspace events
// unless told to, and miniredis cannot.
package redistest
