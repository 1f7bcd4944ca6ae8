package stage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/memredis"
	"github.com/redlatch/redlatch/internal/torture/simnet"
	"github.com/redlatch/redlatch/internal/torture/simstop"
)

// Settings are what a visitor chooses.
type Settings struct {
	Name string `json:"name"` // of the lock
	Fair bool   `json:"fair"`
	TTL  int    `json:"ttl_ms"` // of its lease
}

// Actions are what a visitor can do with a client.
const (
	Acquire = "acquire" // and wait, if somebody else has the lock
	Release = "release" // or end the wait
	Cut     = "cut"     // nothing reaches Redis, or comes from it
	Mend    = "mend"    // what was on its way arrives now, as with TCP
	Stop    = "stop"    // as SIGSTOP does
	Resume  = "resume"  // as SIGCONT does
	Kill    = "kill"    // as SIGKILL does
	Start   = "start"   // a new process, after Kill
)

// ErrCannot means that a client is in a state in which it cannot do what the visitor wants.
var ErrCannot = errors.New("stage: the client cannot do that now")

// address is that of the server. go-redis looks names up.
const address = "10.0.0.1:6379"

// looksEvery is how often the stage looks at what Redis has.
const looksEvery = 25 * time.Millisecond

// Stage is two clients and a lock.
type Stage struct {
	settings Settings
	began    time.Time
	net      *simnet.Net
	server   *simnet.Server
	redis    *memredis.Server
	reader   *memredis.Conn // reads without the network
	changed  func()
	stop     context.CancelFunc
	looking  sync.WaitGroup

	mu        sync.Mutex // guards what follows; see locked
	clients   [2]*client
	processes []*process // all that were started
	holder    *process   // whose hold Redis has; nil if it has none
	holderRow row
	latest    *section // that began last
	log       []Entry
}

// New returns a stage with two clients that do nothing. changed is called, at once and with a mutex held, when
// [Stage.State] would return something else. It must not block.
func New(settings Settings, changed func()) (*Stage, error) {
	redis.SetLogger(silent{})
	s := &Stage{settings: settings, began: time.Now(), net: simnet.New(1), changed: changed}
	s.redis = memredis.New(time.Now, 1)
	s.server = s.net.Serve(address, s.redis)
	s.reader = s.redis.NewConn(func([]byte) {})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	for i := range s.clients {
		s.clients[i] = &client{number: i + 1}
		if err := s.start(s.clients[i]); err != nil {
			stop()
			return nil, err
		}
	}
	s.looking.Go(func() { s.look(ctx) })
	return s, nil
}

// silent is the logger of go-redis.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// locked calls f with the mutex. The goroutine cannot be stopped meanwhile.
func (s *Stage) locked(f func()) {
	defer simstop.Join(simstop.Join(0))
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changed()
}

// now is the time of the stage in ms.
func (s *Stage) now() float64 { return float64(time.Since(s.began).Microseconds()) / 1000 }

// Do carries out an action of the client with an index. It does not wait for Redis.
func (s *Stage) Do(index int, action string) error {
	if index < 0 || index >= len(s.clients) {
		return fmt.Errorf("%w: there is no client %d", ErrCannot, index+1)
	}
	c := s.clients[index]
	var err error
	s.locked(func() { err = s.prepare(c, action) })
	if err != nil || action != Start {
		return err
	}
	return s.start(c)
}

// prepare does all of an action but the start of a process. s.mu is held.
func (s *Stage) prepare(c *client, action string) error {
	p := c.process
	isAble := map[string]bool{
		Acquire: p.state == idle && !p.stopped,
		Release: (p.state == holding || p.state == waiting) && !p.stopped,
		Cut:     p.state != killed && !p.cut,
		Mend:    p.state != killed && p.cut,
		Stop:    p.state != killed && !p.stopped && simstop.Supported,
		Resume:  p.state != killed && p.stopped,
		Kill:    p.state != killed && simstop.Supported,
		Start:   p.state == killed,
	}
	if !isAble[action] {
		return fmt.Errorf("%w: %s", ErrCannot, action)
	}
	switch action {
	case Acquire:
		p.acquire()
	case Release:
		p.end()
	case Cut:
		s.tell(c, "its wire is cut", fault)
		p.setCut(true)
	case Mend:
		s.tell(c, "its wire works again", plain)
		p.setCut(false)
	case Stop:
		s.tell(c, "kill -STOP: the process stands still", fault)
		p.setStopped(true)
	case Resume:
		s.tell(c, "kill -CONT: the process goes on", plain)
		p.setStopped(false)
	case Kill:
		s.tell(c, "kill -9: the process is gone", fault)
		p.kill()
	case Start:
		s.tell(c, "a new process starts", plain)
		p.setCut(false) // what the former process had sent arrives now
	}
	return nil
}

// look looks at what Redis has until ctx ends.
func (s *Stage) look(ctx context.Context) {
	for ctx.Err() == nil {
		found := s.holderInRedis()
		if found != s.lastHolder() {
			s.locked(func() { s.setHolder(found) })
		}
		select {
		case <-time.After(looksEvery):
		case <-ctx.Done():
		}
	}
}

// lastHolder is whom the latest look has found.
func (s *Stage) lastHolder() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder
}

// setHolder notes whose hold Redis has. s.mu is held.
func (s *Stage) setHolder(found *process) {
	s.holderRow.endAll(s.now(), "")
	s.holder = found
	if found != nil {
		name := fmt.Sprintf("client %d", found.owner.number)
		s.holderRow.begin(Span{What: spanHold, From: s.now(), Text: "Redis has a lock of " + name, Short: name})
	}
}

// Close closes both clients. It is for tests: a page goes away without.
func (s *Stage) Close(ctx context.Context) error {
	s.stop()
	s.looking.Wait()
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.process.redlatch.Close(ctx), c.process.rdb.Close())
	}
	return errors.Join(errs...)
}
