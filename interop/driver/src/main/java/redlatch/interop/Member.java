package redlatch.interop;

import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;

/**
 * A thread that enters a section repeatedly. Only this thread writes the counts. Other threads read
 * them after it has ended.
 */
final class Member {
  private final int index;
  private final Guard guard;
  private final long insideNanos;
  private final BooleanSupplier counting;
  private volatile long began; // System.nanoTime() at the start of the current or last wait
  private long wait;
  private Guard.Entry entry;

  // Passes that counted.
  final Waits waits = new Waits();
  final Waits handOffTimes = new Waits();
  long operations;
  long handOffs;
  long reads;

  // All passes, and the end of the last one.
  long end;
  long allOperations;
  long allHandOffs;

  /** A pass counts if {@code counting} is true at its end. */
  Member(int index, Guard guard, long insideNanos, BooleanSupplier counting) {
    this.index = index;
    this.guard = guard;
    this.insideNanos = insideNanos;
    this.counting = counting;
  }

  /** Enters and leaves once. */
  void pass(Section section, int weight, boolean read) throws InterruptedException {
    began = System.nanoTime();
    section.run(() -> inside(weight));
    end = System.nanoTime();
    allOperations++;
    allHandOffs += entry.handOff() ? 1 : 0;
    if (counting.getAsBoolean()) {
      count(read);
    }
  }

  private void inside(int weight) {
    wait = System.nanoTime() - began;
    entry = guard.enter(index, weight);
    if (insideNanos > 0) {
      LockSupport.parkNanos(insideNanos);
    }
    guard.leave(entry, weight);
  }

  private void count(boolean read) {
    operations++;
    reads += read ? 1 : 0;
    waits.add(wait);
    if (entry.handOff()) {
      handOffs++;
      handOffTimes.add(entry.nanos());
    }
  }

  /** Sets the start of the current wait, by System.nanoTime(). */
  void waitsSince(long nanoTime) {
    began = nanoTime;
  }

  /** Records the current wait, which was abandoned. */
  void gaveUp() {
    waits.add(System.nanoTime() - began);
  }
}
