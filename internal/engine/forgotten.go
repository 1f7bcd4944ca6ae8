package engine

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Releases that a fail-over forgets.
//
// A master may answer a release after its replica was promoted, or die before the replica has received it:
//
//	client A                 old master            replica
//	sends a release
//	                         executes it
//	is answered                                    is promoted: A still holds the lock
//
// On the promoted replica the lock would stay taken for the rest of A's lease, or for ever without one. A client
// of servers with replicas therefore remembers its latest releases, and repeats them when another server may have
// taken the master's place. The repetition is a rollback of the acquisition, so it changes nothing on a server that
// has executed the release.
//
// The client notices a fail-over by the first answer after a broken connection, or because the name has another
// server now. An idle client would notice neither, so a goroutine sends a small command to each of those servers
// until the releases are old.
//
// The same happens to a waiter that gives up its place in a queue on the server: on the promoted replica its client's
// heartbeats would keep that place alive, and the waiters behind it would wait for nobody. So the client remembers
// and repeats these rollbacks, too.
//
// A release may have handed the lock off. The promoted server has forgotten that, too, so the successor has to
// learn of its loss before the lock becomes free there: the repetitions come a moment after the questions about
// all holds (Config.Moved).

const (
	maxRecent     = 8192                   // releases that a client remembers, in a megabyte at most
	recentFor     = time.Minute            // how long it remembers a release
	settledAfter  = 5 * time.Second        // a release that is older is repeated once
	lookPause     = time.Second            // between looks for another server
	repeatPause   = 500 * time.Millisecond // between the questions about holds and the repetitions
	touchTimeout  = time.Second            // of the command of a look
	touchesAtMost = 16                     // commands of a look, for that many servers
)

// recentRelease is a release, or the rollback of a waiter, that a server has answered.
type recentRelease struct {
	r      *Resource
	owner  Owner
	min    *minHold
	server any     // that had the resource
	at     Instant // when it was answered
	over   Instant // when a repetition must end
}

// recentReleases are the latest releases of a client. It is a part of Core.
type recentReleases struct {
	mu      sync.Mutex      // guards the rest
	list    []recentRelease // the oldest first
	looking bool            // lookForMoves runs
}

// rememberLeft remembers that q has left its place in a queue on the server, which has just answered that. The id of
// a joint lock's attempt, or a shared one, may be used again: its rollback is not repeated. It does not block.
func (c *Core) rememberLeft(r *Resource, q *Request) {
	if c.HasReplicas && r.Identity == nil && r.Traits.NewQueue != nil && q.MayQueue && !q.Shared {
		c.remember(r, q.Owner, nil, time.Now().Add(recentFor))
	}
}

// remember remembers the release of owner, which the server has just answered. A repetition must end by until. It does
// not block.
func (c *Core) remember(r *Resource, owner Owner, rest *minHold, until time.Time) {
	now := time.Now()
	over := min(c.Instant(now.Add(recentFor)), c.Instant(until))
	release := recentRelease{r, owner, rest, c.Server(r), c.Instant(now), over}
	rs := &c.recent
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.list) >= maxRecent { // half of them, because it copies
		rs.list = slices.Delete(rs.list, 0, maxRecent/2)
	}
	rs.list = append(rs.list, release)
	if !rs.looking {
		rs.looking = true
		c.Spawn(c.lookForMoves)
	}
}

// RepeatReleases repeats the latest releases in the background, because another server may have taken the place of
// the one that answered them. It does not block. A young release may be repeated again: the server that has
// answered now may be the old master still.
func (c *Core) RepeatReleases() {
	now := time.Now()
	rs := &c.recent
	rs.mu.Lock()
	all := slices.Clone(rs.list)
	rs.list = slices.DeleteFunc(rs.list, func(release recentRelease) bool {
		return c.Instant(now)-release.at > Instant(settledAfter)
	})
	for i := range rs.list {
		rs.list[i].server = c.Server(rs.list[i].r)
	}
	rs.mu.Unlock()
	for _, release := range all {
		// On a server that has the release, the lock stays taken for the minimum hold.
		due := now.Add(repeatPause + release.min.left(c.Instant(now)))
		release.r.addDuty(context.Background(), due, c.Time(release.over), func(ctx context.Context) error {
			return release.r.Driver.Rollback(ctx, &Request{Owner: release.owner})
		})
	}
}

// lookForMoves calls Config.Moved when the resource of a recent release has another server. It runs while there
// are recent releases, or until the core stops.
func (c *Core) lookForMoves() {
	for {
		Pause(context.Background(), lookPause, c.stopping)
		if c.IsStopping() {
			return
		}
		servers := c.recentServers()
		if len(servers) == 0 {
			return
		}
		moved, touches := false, 0
		for server, r := range servers { // when the core stops, commands end at once
			if touches++; touches <= touchesAtMost {
				ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
				c.Touch(ctx, r)
				cancel()
			}
			moved = moved || c.Server(r) != server
		}
		if moved {
			c.Moved()
		}
	}
}

// recentServers forgets old releases, and returns a resource of each server that the others were sent to. Without
// any, the caller, lookForMoves, ends.
func (c *Core) recentServers() (servers map[any]*Resource) {
	now := c.Instant(time.Now())
	rs := &c.recent
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.list = slices.DeleteFunc(rs.list, func(release recentRelease) bool { return now >= release.over })
	servers = map[any]*Resource{}
	for _, release := range rs.list {
		servers[release.server] = release.r
	}
	rs.looking = len(servers) > 0
	return servers
}
