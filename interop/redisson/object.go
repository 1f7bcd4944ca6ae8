package redisson

import (
	"context"
	"time"
)

// Object is one Java object of a client, used by one Java thread. It is a value: On and Handle
// return modified copies.
type Object struct {
	client *Client
	target Target
	thread string
}

// On returns the object used by another thread.
func (o Object) On(thread string) Object {
	o.thread = thread
	return o
}

// Handle returns another Java object of the same kind and name. Redisson keeps some state per
// object, such as the last lease.
func (o Object) Handle(handle string) Object {
	o.target.Handle = handle
	return o
}

// Go calls a method of Redisson's API by its name and returns at once. See Command.Args for the
// arguments. If the method returns a future, Java waits for it, and cancels it if the thread is
// interrupted.
func (o Object) Go(method string, args ...any) *Future {
	command := o.command("invoke")
	command.Method, command.Args = method, args
	return o.client.driver.Go(command)
}

// Call is like Go and waits for the answer.
func (o Object) Call(ctx context.Context, method string, args ...any) (Answer, error) {
	return o.Go(method, args...).Wait(ctx)
}

// Counter increments w.Key in each section by a GET and a SET. Only the object prevents lost
// updates: with mutual exclusion the final value is Run.Count. It uses new threads.
func (o Object) Counter(ctx context.Context, w Workload) (Run, error) {
	return o.work(ctx, "counter", w)
}

// Bench enters and leaves empty sections. It uses new threads.
func (o Object) Bench(ctx context.Context, w Workload) (Run, error) { return o.work(ctx, "bench", w) }

func (o Object) work(ctx context.Context, op string, w Workload) (Run, error) {
	command := o.command(op)
	command.Workload = &w
	return result[Run](o.client.driver.Call(ctx, command))
}

func (o Object) command(op string) Command {
	return Command{Op: op, Thread: o.client.thread(o.thread), Target: &o.target}
}

func (o Object) do(ctx context.Context, method string, args ...any) error {
	_, err := o.Call(ctx, method, args...)
	return err
}

func (o Object) is(ctx context.Context, method string, args ...any) (bool, error) {
	return result[bool](o.Call(ctx, method, args...))
}

func (o Object) number(ctx context.Context, method string, args ...any) (int64, error) {
	return result[int64](o.Call(ctx, method, args...))
}

func (o Object) text(ctx context.Context, method string, args ...any) (string, error) {
	return result[string](o.Call(ctx, method, args...))
}

// millis is the unit of all durations in arguments.
const millis = "MILLISECONDS"

func ms(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// Lock is an RLock of any kind. A negative duration is sent as Redisson's -1: for a lease the
// watchdog's TTL, for a wait no waiting.
type Lock struct{ Object }

// On returns the lock used by another thread.
func (l Lock) On(thread string) Lock { return Lock{l.Object.On(thread)} }

// Handle returns another Java object of the same lock.
func (l Lock) Handle(handle string) Lock { return Lock{l.Object.Handle(handle)} }

// Lock is lock().
func (l Lock) Lock(ctx context.Context) error { return l.do(ctx, "lock") }

// LockFor is lock(lease).
func (l Lock) LockFor(ctx context.Context, lease time.Duration) error {
	return l.do(ctx, "lock", ms(lease), millis)
}

// TryLock is tryLock().
func (l Lock) TryLock(ctx context.Context) (bool, error) { return l.is(ctx, "tryLock") }

// TryLockFor is tryLock(wait, lease).
func (l Lock) TryLockFor(ctx context.Context, wait, lease time.Duration) (bool, error) {
	return l.is(ctx, "tryLock", ms(wait), ms(lease), millis)
}

// Unlock is unlock().
func (l Lock) Unlock(ctx context.Context) error { return l.do(ctx, "unlock") }

// ForceUnlock is forceUnlock().
func (l Lock) ForceUnlock(ctx context.Context) (bool, error) { return l.is(ctx, "forceUnlock") }

// IsLocked is isLocked().
func (l Lock) IsLocked(ctx context.Context) (bool, error) { return l.is(ctx, "isLocked") }

// IsHeld is isHeldByCurrentThread().
func (l Lock) IsHeld(ctx context.Context) (bool, error) { return l.is(ctx, "isHeldByCurrentThread") }

// HoldCount is getHoldCount().
func (l Lock) HoldCount(ctx context.Context) (int64, error) { return l.number(ctx, "getHoldCount") }

// TTL is remainTimeToLive(), in milliseconds: -1 without an expiry, -2 without a lock.
func (l Lock) TTL(ctx context.Context) (int64, error) { return l.number(ctx, "remainTimeToLive") }

// Token is getToken() of a fenced lock.
func (l Lock) Token(ctx context.Context) (int64, error) { return l.number(ctx, "getToken") }

// LockAndGetToken is lockAndGetToken() of a fenced lock.
func (l Lock) LockAndGetToken(ctx context.Context) (int64, error) {
	return l.number(ctx, "lockAndGetToken")
}

// TryLockAndGetToken is tryLockAndGetToken(wait, lease) of a fenced lock; 0 means not acquired.
func (l Lock) TryLockAndGetToken(ctx context.Context, wait, lease time.Duration) (int64, error) {
	return l.number(ctx, "tryLockAndGetToken", ms(wait), ms(lease), millis)
}

// Semaphore is an RSemaphore.
type Semaphore struct{ Object }

// On returns the semaphore used by another thread.
func (s Semaphore) On(thread string) Semaphore { return Semaphore{s.Object.On(thread)} }

// TrySetPermits is trySetPermits(n).
func (s Semaphore) TrySetPermits(ctx context.Context, n int) (bool, error) {
	return s.is(ctx, "trySetPermits", n)
}

// AddPermits is addPermits(n).
func (s Semaphore) AddPermits(ctx context.Context, n int) error { return s.do(ctx, "addPermits", n) }

// DrainPermits is drainPermits().
func (s Semaphore) DrainPermits(ctx context.Context) (int64, error) {
	return s.number(ctx, "drainPermits")
}

// Available is availablePermits().
func (s Semaphore) Available(ctx context.Context) (int64, error) {
	return s.number(ctx, "availablePermits")
}

// Acquire is acquire(n).
func (s Semaphore) Acquire(ctx context.Context, n int) error { return s.do(ctx, "acquire", n) }

// TryAcquire is tryAcquire(n).
func (s Semaphore) TryAcquire(ctx context.Context, n int) (bool, error) {
	return s.is(ctx, "tryAcquire", n)
}

// TryAcquireFor is tryAcquire(n, wait).
func (s Semaphore) TryAcquireFor(ctx context.Context, n int, wait time.Duration) (bool, error) {
	return s.is(ctx, "tryAcquire", n, ms(wait), millis)
}

// Release is release(n).
func (s Semaphore) Release(ctx context.Context, n int) error { return s.do(ctx, "release", n) }

// Permits is an RPermitExpirableSemaphore. A permit with a negative lease never expires.
type Permits struct{ Object }

// On returns the semaphore used by another thread.
func (p Permits) On(thread string) Permits { return Permits{p.Object.On(thread)} }

// TrySetPermits is trySetPermits(n).
func (p Permits) TrySetPermits(ctx context.Context, n int) (bool, error) {
	return p.is(ctx, "trySetPermits", n)
}

// SetPermits is setPermits(n).
func (p Permits) SetPermits(ctx context.Context, n int) error { return p.do(ctx, "setPermits", n) }

// AddPermits is addPermits(n).
func (p Permits) AddPermits(ctx context.Context, n int) error { return p.do(ctx, "addPermits", n) }

// Available is availablePermits().
func (p Permits) Available(ctx context.Context) (int64, error) {
	return p.number(ctx, "availablePermits")
}

// Acquired is acquiredPermits().
func (p Permits) Acquired(ctx context.Context) (int64, error) {
	return p.number(ctx, "acquiredPermits")
}

// Total is getPermits().
func (p Permits) Total(ctx context.Context) (int64, error) { return p.number(ctx, "getPermits") }

// Acquire is acquire(lease). It returns the permit's id.
func (p Permits) Acquire(ctx context.Context, lease time.Duration) (string, error) {
	return p.text(ctx, "acquire", ms(lease), millis)
}

// AcquireN is acquire(n, lease).
func (p Permits) AcquireN(ctx context.Context, n int, lease time.Duration) ([]string, error) {
	return result[[]string](p.Call(ctx, "acquire", n, ms(lease), millis))
}

// TryAcquire is tryAcquire(wait, lease); "" means not acquired.
func (p Permits) TryAcquire(ctx context.Context, wait, lease time.Duration) (string, error) {
	return p.text(ctx, "tryAcquire", ms(wait), ms(lease), millis)
}

// Release is release(id).
func (p Permits) Release(ctx context.Context, id string) error { return p.do(ctx, "release", id) }

// ReleaseAll is release(ids). It releases all of them or none.
func (p Permits) ReleaseAll(ctx context.Context, ids ...string) error {
	return p.do(ctx, "release", ids)
}

// TryRelease is tryRelease(id).
func (p Permits) TryRelease(ctx context.Context, id string) (bool, error) {
	return p.is(ctx, "tryRelease", id)
}

// UpdateLease is updateLeaseTime(id, lease).
func (p Permits) UpdateLease(ctx context.Context, id string, lease time.Duration) (bool, error) {
	return p.is(ctx, "updateLeaseTime", id, ms(lease), millis)
}

// Lease is getLeaseTime(id), in milliseconds: -1 without an expiry.
func (p Permits) Lease(ctx context.Context, id string) (int64, error) {
	return p.number(ctx, "getLeaseTime", id)
}

// Latch is an RCountDownLatch.
type Latch struct{ Object }

// On returns the latch used by another thread.
func (l Latch) On(thread string) Latch { return Latch{l.Object.On(thread)} }

// TrySetCount is trySetCount(n).
func (l Latch) TrySetCount(ctx context.Context, n int) (bool, error) {
	return l.is(ctx, "trySetCount", n)
}

// CountDown is countDown().
func (l Latch) CountDown(ctx context.Context) error { return l.do(ctx, "countDown") }

// Count is getCount().
func (l Latch) Count(ctx context.Context) (int64, error) { return l.number(ctx, "getCount") }

// Await is await().
func (l Latch) Await(ctx context.Context) error { return l.do(ctx, "await") }

// AwaitFor is await(wait). It returns false if the wait timed out.
func (l Latch) AwaitFor(ctx context.Context, wait time.Duration) (bool, error) {
	return l.is(ctx, "await", ms(wait), millis)
}

// Delete is delete().
func (l Latch) Delete(ctx context.Context) (bool, error) { return l.is(ctx, "delete") }
