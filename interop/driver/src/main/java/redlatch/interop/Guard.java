package redlatch.interop;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;

/**
 * Observes the critical section of one key: it counts overlaps and hand-offs. It does not exclude
 * anybody, and its counts are correct with and without mutual exclusion.
 */
final class Guard {
  /** The state of the section at an entry. {@code nanos} is the time since the last leave. */
  record Entry(long updates, boolean handOff, long nanos) {}

  private static final int NOBODY = -1;
  private static final long LOOK_NANOS = TimeUnit.MICROSECONDS.toNanos(50);

  private final int capacity;
  private final AtomicInteger inside = new AtomicInteger();
  private final AtomicInteger last = new AtomicInteger(NOBODY);
  private final LongAdder overlaps = new LongAdder();
  private final LongAdder exclusive = new LongAdder();
  private final LongAdder entries = new LongAdder();
  private volatile long updates; // read at an entry and written at the leave, so overlaps lose updates
  private volatile long leaving; // System.nanoTime() of the last leave

  /** Overlaps are entries that make the sum of weights exceed {@code capacity}. */
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
    boolean handOff = before != thread && before != NOBODY;
    return new Entry(updates, handOff, nanos);
  }

  /** Called last in the section, so that the whole section is between the read and the write. */
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

  /** Waits until another thread has entered after this one, or {@code stopped} is true. */
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

  /** The number of exclusive updates minus the number that the counter shows. */
  long lostUpdates() {
    return exclusive.sum() - updates;
  }
}
