package primitives_test

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/primitives"
)

// These declarations pin the names and the signatures of the public API, which other suites compile
// against.
var (
	_ func(redis.UniversalClient, ...primitives.ClientOption) (*primitives.Client, error) = primitives.New

	_ interface {
		ID() string
		Close(context.Context) error
		Lock(string, ...primitives.Option) *primitives.Lock
		FairLock(string, ...primitives.Option) *primitives.Lock
		FencedLock(string, ...primitives.Option) *primitives.Lock
		RWLock(string, ...primitives.Option) *primitives.RWLock
		Semaphore(string, ...primitives.Option) *primitives.Semaphore
		PermitExpirableSemaphore(string, ...primitives.Option) *primitives.PermitExpirableSemaphore
		CountDownLatch(string) *primitives.CountDownLatch
		Striped(string, int, ...primitives.Option) *primitives.Striped
		Keyed(...primitives.Option) *primitives.Keyed
		Election(string, ...primitives.Option) *primitives.Election
		Locks(context.Context, string) iter.Seq2[primitives.Info, error]
		Numbers(context.Context, string) iter.Seq2[primitives.Info, error]
		Inspect(context.Context, string) (primitives.Info, error)
	} = (*primitives.Client)(nil)
	_ interface {
		Reader() *primitives.Lock
		Writer() *primitives.Lock
	} = (*primitives.RWLock)(nil)
	_ interface {
		Lock(string) *primitives.Lock
	} = (*primitives.Striped)(nil)
	_ func([]*primitives.Lock, ...primitives.Option) *primitives.Lock = primitives.NewMultiLock
	_ func([]*primitives.Lock, ...primitives.Option) *primitives.Lock = primitives.NewRedLock

	_ = []error{
		primitives.ErrNotAcquired, primitives.ErrUnavailable, primitives.ErrLost, primitives.ErrNotHeld,
		primitives.ErrReleased, primitives.ErrDeadlock, primitives.ErrUnsupported, primitives.ErrClosed,
		primitives.ErrInvalid, primitives.ErrNotReplicated,
		primitives.ErrOutcomeUnknown,
	}

	_ func(time.Duration) primitives.Option                = primitives.WithWait
	_ func(time.Duration) primitives.Option                = primitives.WithLease
	_ func(time.Duration) primitives.Option                = primitives.WithWatchdog
	_ func(time.Duration) primitives.Option                = primitives.WithMaxHold
	_ func(int) primitives.Option                          = primitives.WithPermits
	_ func(string) primitives.Option                       = primitives.WithOwner
	_ func() primitives.Option                             = primitives.WithNonReentrant
	_ func(time.Duration, time.Duration) primitives.Option = primitives.WithPolling
	_ func(time.Duration) primitives.Option                = primitives.WithWaiterTimeout
	_ func(time.Duration) primitives.Option                = primitives.WithCohort
	_ func(time.Duration) primitives.Option                = primitives.WithMinHold
	_ func(context.Context) primitives.Option              = primitives.WithHoldContext

	_ func(...primitives.Option) primitives.ClientOption   = primitives.WithDefaults
	_ func(string) primitives.ClientOption                 = primitives.WithClientID
	_ func(string) primitives.ClientOption                 = primitives.WithPrefix
	_ func(*slog.Logger) primitives.ClientOption           = primitives.WithLogger
	_ func(func(primitives.Event)) primitives.ClientOption = primitives.WithObserver
	_ func(int, time.Duration) primitives.ClientOption     = primitives.WithReplicas
	_ func(time.Duration) primitives.ClientOption          = primitives.WithSafetyMargin
	_ func(bool) primitives.ClientOption                   = primitives.WithShardedPubSub
	_ func(string) primitives.ClientOption                 = primitives.WithClientName
	_ func(time.Duration) primitives.ClientOption          = primitives.WithCommandTimeout

	_ func(time.Duration) func(context.Context, *redis.Conn) error = primitives.MinUptime

	_ func(context.Context) *primitives.Hold = primitives.HoldFrom

	_ sync.Locker                 = (*primitives.Locker)(nil)
	_ interface{ TryLock() bool } = (*primitives.Locker)(nil)

	_ holdable       = (*primitives.Lock)(nil)
	_ holdable       = (*primitives.Semaphore)(nil)
	_ holdable       = (*primitives.PermitExpirableSemaphore)(nil)
	_ kinds.Pool     = (*primitives.Semaphore)(nil)
	_ kinds.Pool     = (*primitives.PermitExpirableSemaphore)(nil)
	_ kinds.Takeable = (*primitives.Lock)(nil)
	_ kinds.Takeable = (*primitives.PermitExpirableSemaphore)(nil)

	_ interface {
		HoldFrom(context.Context) *primitives.Hold
		ForceRelease(context.Context) (bool, error)
		Locker(context.Context) *primitives.Locker
		Info(context.Context) (primitives.Info, error)
	} = (*primitives.Lock)(nil)
	_ interface {
		Lock(ctx context.Context, name string) error
		TryLock(ctx context.Context, name string) (bool, error)
		Unlock(ctx context.Context, name string) error
		Ensure(ctx context.Context, name string) error
	} = (*primitives.Keyed)(nil)
	_ interface {
		Name() string
		Run(ctx context.Context, lead func(ctx context.Context, term primitives.Term) error) error
		Leader(context.Context) (primitives.Leader, error)
		Watch(context.Context) iter.Seq2[primitives.Leader, error]
	} = (*primitives.Election)(nil)
	_ = primitives.Term{Token: int64(0), Hold: (*primitives.Hold)(nil)}
	_ = primitives.Leader{ID: "", Client: "", Token: int64(0), TTL: time.Duration(0)}
	_ interface {
		Drain(context.Context) (int, error)
	} = (*primitives.Semaphore)(nil)
	_ interface {
		Resize(context.Context, int) error
	} = (*primitives.PermitExpirableSemaphore)(nil)
	_ interface {
		Name() string
		Init(context.Context, int) (bool, error)
		Delete(context.Context) (bool, error)
		Wait(context.Context) error
		CountDown(context.Context) error
		Count(context.Context) (int64, error)
	} = (*primitives.CountDownLatch)(nil)
	_ interface {
		Context() context.Context
		Release(context.Context) error
		Check(context.Context) error
		Extend(context.Context, time.Duration) error
		Detach() string
		ID() string
		Token() int64
		Name() string
		Depth() int
		ValidUntil() time.Time
	} = (*primitives.Hold)(nil)

	_ = primitives.Holder{ID: "", Count: 0, TTL: time.Duration(0), Client: ""}
	_ = primitives.Info{
		Name: "", Kind: "", Holders: []primitives.Holder(nil), Waiters: []string(nil), TTL: time.Duration(0),
		Token: int64(0), Permits: 0, Available: 0,
	}
	_ = primitives.Event{
		Kind: primitives.EventKind(""), Lock: "", Name: "", ID: "", Waited: time.Duration(0),
		Held: time.Duration(0), Late: time.Duration(0), Err: error(nil), Ctx: context.Context(nil),
	}
	_ = map[primitives.EventKind]string{
		primitives.EventWait: "wait", primitives.EventAcquired: "acquired", primitives.EventNested: "nested",
		primitives.EventRenewed: "renewed", primitives.EventRenewFailed: "renew-failed", primitives.EventLost: "lost",
		primitives.EventReleased: "released", primitives.EventReleaseFailed: "release-failed",
		primitives.EventLeaked: "leaked", primitives.EventNotAcquired: "not-acquired",
		primitives.EventWaited: "waited", primitives.EventDetached: "detached",
		primitives.EventAbandoned: "abandoned", primitives.EventLinkLost: "link-lost",
	}
	_ = map[primitives.Outcome]string{
		primitives.OutcomeAcquired: "acquired", primitives.OutcomeNested: "nested", primitives.OutcomeBusy: "busy",
		primitives.OutcomeEnded: "ended", primitives.OutcomeUnavailable: "unavailable", primitives.OutcomeError: "error",
	}
	_ func(primitives.Event) primitives.Outcome = primitives.Event.Outcome
)

// holdable has the methods that all primitives with a Hold share.
type holdable interface {
	Name() string
	Acquire(context.Context, ...primitives.Option) (*primitives.Hold, error)
	TryAcquire(context.Context, ...primitives.Option) (*primitives.Hold, error)
	Do(context.Context, func(context.Context) error, ...primitives.Option) error
	TryDo(context.Context, func(context.Context) error, ...primitives.Option) (ran bool, err error)
}
