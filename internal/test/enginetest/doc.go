// Package enginetest has a lock server in memory, and clients of it, for the tests of packages
// engine, joint, turns and presence. Leases, delays and faults go by the fake clock of the test's
// bubble: see [Bubble].
//
//	Bubble(t, func(t *testing.T, s *Server) {
//		c := s.Client(t, "a")
//		s.Script("acquire", Fault{Mute: true}) // what happens to the next command
//		hold := Acquire(t, t.Context(), c.Lock("x"))
//		Release(t, hold)
//		s.RequireFree(t)
//	})
package enginetest
