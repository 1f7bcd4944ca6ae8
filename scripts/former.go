package scripts

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The name of a primary may move to another server, such as a DNS record, or the endpoint of a
// managed service. The former primary may stay up as a read-only replica, and the client's
// connections to it stay open. Each of them answers from old data, and refuses writes with
// READONLY.
//
// Every script therefore runs a write, even if it only reads (scripts/lib/primary.lua), and so do
// plain commands that read: see [Runner.Reads]. go-redis closes a connection that has answered
// READONLY. The next attempt gets another connection of the pool, which is probably as old, or
// dials, which looks the name up. So an attempt follows at once while nothing was dialed. Otherwise
// it follows after a pause, because the name has not moved yet.
//
// A replica may also refuse all commands: with LOADING while it loads the data of its master, and
// with MASTERDOWN if it has no link to its master and may not serve old data
// (replica-serve-stale-data no). A primary that has restarted answers LOADING, too. Another
// connection to it makes no difference. go-redis would keep the connection after both answers: see
// closingAnswer.

// maxFormerDelay is the longest delay between attempts after such an answer, before jitter. It lets
// waiters go on soon after the name has moved, whatever delays the client is configured with.
const maxFormerDelay = 250 * time.Millisecond

// readOnly is the beginning of the answer of a former primary to a write.
const readOnly = "READONLY "

// refusesAll are the beginnings of the answers of a replica to every command. Only another server
// may give another one.
var refusesAll = []string{"LOADING ", "MASTERDOWN "}

// isFormer reports whether err may be the answer of a former primary.
func isFormer(err error) bool { return repliedWith(err, readOnly) || repliedWith(err, refusesAll...) }

// closingAnswer is what go-redis sees of one of the answers in refusesAll. It begins like the
// answer to a write, so go-redis closes the connection, and the next one leads to where the name of
// the primary leads by then.
type closingAnswer struct{ error }

func (a closingAnswer) Error() string {
	return readOnly + "the server refuses all commands: " + a.error.Error()
}

func (a closingAnswer) Unwrap() error { return a.error }

// RedisError makes it a [redis.Error].
func (closingAnswer) RedisError() {}

// former counts the attempts of a call that met a former primary.
type former struct {
	dials int64 // the dials of the client when the latest attempt was answered, plus 1; 0 if none was answered
	old   int   // the number of attempts over connections that were older
}

// isOld reports whether err is the answer of a former primary over a connection that may be older
// than the attempt. The caller then makes another attempt at once.
func (f *former) isOld(r *Runner, err error) bool {
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

// defaultConnections is the assumed limit of a client that does not tell how many connections it
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

// note notes that a dial has reached another server than the dial before it did.
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
// pipeline. The answer of a replica becomes errFormer, so go-redis closes the connection. HELLO
// needs no permission. A server that does not know it counts as a primary.
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

// errFormer says what Redis would say of a write.
var errFormer = formerError{}

type formerError struct{}

func (formerError) Error() string {
	return readOnly + "the server is a replica: it answers from old data"
}

// RedisError makes it a [redis.Error].
func (formerError) RedisError() {}
