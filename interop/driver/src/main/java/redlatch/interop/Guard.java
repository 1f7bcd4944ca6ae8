package redlatch.interop;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;

/**
 * Watches over the section of one key: whether too many are inside, and how it goes from one thread to another. It keeps nobody out:
 * what it counts is right whether anything else does or not.
 */
final class Guard {
  /** What the section was at an entry. Nanoseconds are those since the last thread was about to leave. */
  record Entry(long updates, boolean handOver, long nanos) {}

  private static final int NOBODY = -1;
  private static final long LOOK_NANOS = TimeUnit.MICROSECONDS.toNanos(50);

  private final int capacity;
  private final AtomicInteger inside = new AtomicInteger();
  private final AtomicInteger last = new AtomicInteger(NOBODY);
  private final LongAdder overlaps = new LongAdder();
  private final LongAdder exclusive = new LongAdder();
  private final LongAdder entries = new LongAdder();
  private volatile long updates; // read at an entry, written at the leave: loses updates unless others are kept out
  private volatile long leaving; // System.nanoTime() of the last leave

  /** The weights of those inside may come to capacity. */
  Guard(int capacity) {
    this.capacity = capacity;
  }

  Entry enter(int thread, int weight) {
    long nanos = System.nanoTime() - leaving;
    if (inside.addAndGet(weight) > capacity) {
      overlaps.increment();
    }
    entries.increment();
    int before = last.getAndSet(thread);
    boolean handOver = before != thread && before != NOBODY;
    return new Entry(updates, handOver, nanos);
  }

  /** Comes last in the section: all that goes on inside lies between the two halves of an update. */
  void leave(Entry entry, int weight) {
    if (weight == capacity) {
      exclusive.increment();
      updates = entry.updates() + 1;
    }
    inside.addAndGet(-weight);
    leaving = System.nanoTime();
  }

  /** System.nanoTime() of the last leave. */
  long leaving() {
    return leaving;
  }

  /** Waits until another thread has entered after this one, or stopped says so. */
  void awaitOther(int thread, BooleanSupplier stopped) {
    while (last.get() == thread && !stopped.getAsBoolean()) {
      LockSupport.parkNanos(LOOK_NANOS);
    }
  }

  long entries() {
    return entries.sum();
  }

  long overlaps() {
    return overlaps.sum();
  }

  /** Updates by threads that were to be alone, less those that are left of them. */
  long lostUpdates() {
    return exclusive.sum() - updates;
  }
}
