package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// polling stands for election as k8s.io/client-go/tools/leaderelection does, with a record in Redis
// instead of a Lease in etcd: candidates read the record every 2 to 4.4 s, and the leader writes it
// every 2 s. The leader deletes its name when it ends (ReleaseOnCancel).
type polling struct {
	rdb *redis.Client
	key string
	id  string
	settings

	raw      string // the record that was seen last, as Redis has it; "" if there was none
	seen     record
	observed time.Time // when raw changed
}

// record is what candidates know of each other: client-go's LeaderElectionRecord.
type record struct {
	Holder  string        `json:"holder"` // "": released
	Lease   time.Duration `json:"lease"`
	Renewed time.Time     `json:"renewed"`
}

// jitter is ten times client-go's JitterFactor: a candidate waits for the retry period, and up to
// 1.2 times as long in addition.
const jitter = 12

// replace is what the resourceVersion is for in Kubernetes: it writes only what nobody has written
// meanwhile.
var replace = redis.NewScript(`
if (redis.call('get', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('set', KEYS[1], ARGV[2])
return 1`)

// stand is LeaderElector.Run, again and again until ctx ends.
func (p *polling) stand(ctx context.Context, lead func(context.Context)) error {
	for {
		for !p.try(ctx) {
			pause := p.retry() + upTo(p.retry()*jitter/10)
			if sleep(ctx, pause) != nil {
				return nil
			}
		}
		term, end := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			lead(term)
		}()
		p.renew(term)
		end()
		<-ended
		if ctx.Err() != nil {
			return p.release(context.WithoutCancel(ctx))
		}
	}
}

// renew renews the lease until ctx ends, or until the renew deadline has passed without a success.
func (p *polling) renew(ctx context.Context) {
	for last := time.Now(); time.Since(last) < p.renewDeadline(); {
		if sleep(ctx, p.retry()) != nil {
			return
		}
		attempt, cancel := context.WithDeadline(ctx, last.Add(p.renewDeadline()))
		if p.try(attempt) {
			last = time.Now()
		}
		cancel()
	}
}

// try is tryAcquireOrRenew.
func (p *polling) try(ctx context.Context) bool {
	mayLead := func() bool {
		isHeld := p.seen.Holder != "" && time.Since(p.observed) < p.seen.Lease
		return !isHeld || p.seen.Holder == p.id
	}
	isLeader := p.seen.Holder == p.id && time.Since(p.observed) < p.seen.Lease
	if isLeader && p.write(ctx, p.id, p.lease) == nil {
		return true
	}
	raw, err := p.rdb.Get(ctx, p.key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false
	}
	if raw != p.raw {
		p.observe(raw)
	}
	return mayLead() && p.write(ctx, p.id, p.lease) == nil
}

func (p *polling) observe(raw string) {
	p.raw, p.seen, p.observed = raw, record{}, time.Now()
	if raw != "" {
		_ = json.Unmarshal([]byte(raw), &p.seen)
	}
}

var errChanged = errors.New("another candidate has written")

func (p *polling) write(ctx context.Context, holder string, lease time.Duration) error {
	raw, err := json.Marshal(record{holder, lease, time.Now()})
	if err != nil {
		return err
	}
	done, err := replace.Run(ctx, p.rdb, []string{p.key}, p.raw, raw).Int()
	switch {
	case err != nil:
		return err
	case done == 0:
		return errChanged
	}
	p.observe(string(raw))
	return nil
}

// release is client-go's: a record without a holder, which is valid for a second.
func (p *polling) release(ctx context.Context) error { return p.write(ctx, "", time.Second) }

// sleep returns an error if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
