package scripts

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A primary's name, such as a DNS record or the endpoint of a managed service, may move to another
// server. The former primary may stay up as a read-only replica, and the client's connections to it
// stay open. Each of them answers from old data, and refuses writes with READONLY.
//
// Every script therefore runs a write, even if it only reads (scripts/lib/primary.lua), and so do
// plain commands that read: see [Runner.Reads]. go-redis closes a connection that has answered
// READONLY. The next attempt gets another connection from the pool, which is probably as old, or
// dials, which looks the name up. As long as nothing was dialed, another attempt follows at once.
// Otherwise it follows after a pause, because the name has not moved yet.
//
// A replica may also refuse all commands: with LOADING while it loads the data of its master, and
// with MASTERDOWN if it has no link to its master and may not serve old data
// (replica-serve-stale-data no). A primary that has restarted answers LOADING, too. Another
// connection to it makes no difference. go-redis would keep the connection after both answers: see
// closingAnswer.

// maxFormerDelay is the longest delay between attempts after such an answer, before jitter. It lets
// waiters go on soon after the name has moved, whatever delays the client is configured with.
const maxFormerDelay = 250 * time.Millisecond

// readOnly is how a former primary's answer to a write begins.
const readOnly = "READONLY "

// refusesAll are the ways in which a replica's answers begin if it refuses every command. Only
// another server may answer differently.
var refusesAll = []string{"LOADING ", "MASTERDOWN "}

// isFormer reports whether err may be a former primary's answer.
func isFormer(err error) bool { return repliedWith(err, readOnly) || repliedWith(err, refusesAll...) }

// closingAnswer is what go-redis sees in place of an answer in refusesAll. It begins like a
// replica's answer to a write, so go-redis closes the connection. The next connection goes to where
// the primary's name leads by then.
type closingAnswer struct{ error }

func (a closingAnswer) Error() string {
	return readOnly + "the server refuses all commands: " + a.error.Error()
}

func (a closingAnswer) Unwrap() error { return a.error }

// RedisError makes it a [redis.Error].
func (closingAnswer) RedisError() {}

// staleAnswers counts the attempts of a call that met a former primary.
type staleAnswers struct {
	dials int64 // the client's dials when the latest attempt was answered, plus 1; 0 if none was answered
	old   int   // the number of attempts that were answered by a former primary
}

// isOld reports whether err is a former primary's answer over a connection that may be older than
// the attempt. The caller then makes another attempt at once.
func (f *staleAnswers) isOld(r *Runner, err error) bool {
	if r.dialed == nil || !isFormer(err) {
		return false
	}
	dials := r.dialed.made.Load() + 1
	dialed := f.dials != 0 && f.dials != dials
	f.dials = dials
	f.old++
	// A client that does not close such connections must not be asked for ever.
	return !dialed && f.old <= r.connections && !r.isStopped()
}

// defaultConnections is the assumed limit of a client that does not say how many connections it
// has.
const defaultConnections = 20

// connectionsOf returns how many connections a client has at most.
func connectionsOf(o *redis.Options) int { return o.PoolSize + max(o.PipelinePoolSize, 0) }

// places notes which servers a client's dials reach.
type places struct {
	mu      sync.Mutex
	earlier map[string]bool
	several bool // the name leads to several servers in turn
}

// note notes that a dial has reached another server than the previous dial.
func (p *places) note(was *string, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was != nil {
		if p.earlier == nil {
			p.earlier = map[string]bool{}
		}
		p.earlier[*was] = true
	}
	p.several = p.several || p.earlier[addr]
	if len(p.earlier) > maxPlaces {
		p.earlier = nil
	}
}

// maxPlaces is how many servers are remembered.
const maxPlaces = 100

// Place returns the server to which the commands of a client go. It consists of the address of the
// latest connection, and of how often a server has answered again after a former primary had
// answered. The address is "" if it is not known, or if the name leads to several servers in turn,
// such as proxies. Place sends nothing.
func (r *Runner) Place() (addr string, moves int64) {
	addr, moves = r.Master()
	if r.dialed == nil {
		return "", moves
	}
	places := &r.dialed.places
	places.mu.Lock()
	defer places.mu.Unlock()
	if places.several {
		return "", moves
	}
	return addr, moves
}

// Master is [Runner.Place] for a client whose dials always reach the master, however often that
// changes.
func (r *Runner) Master() (addr string, moves int64) { return r.Address(), r.recovery.demotions.Load() }

// newRoleCmd returns a command that asks a server for its role, before the other commands of a
// pipeline. A replica's answer becomes errFormer, so go-redis closes the connection. HELLO needs no
// permission. A server that does not know HELLO counts as a primary.
func newRoleCmd(ctx context.Context) *singleCmd {
	cmd := newCmd(ctx, 0, "hello")
	cmd.asksRole = true
	return cmd
}

// isReplica reports whether the reply to HELLO says that the server is a replica.
func isReplica(reply any) bool {
	var role any
	switch facts := reply.(type) {
	case map[any]any: // the reply is in RESP3
		role = facts["role"]
	case []any:
		for i := 0; i+1 < len(facts); i += 2 {
			if facts[i] == "role" {
				role = facts[i+1]
			}
		}
	}
	return role == "replica" || role == "slave"
}

// errFormer reads like Redis's refusal of a write.
var errFormer = formerError{}

type formerError struct{}

func (formerError) Error() string {
	return readOnly + "the server is a replica: it answers from old data"
}

// RedisError makes it a [redis.Error].
func (formerError) RedisError() {}
