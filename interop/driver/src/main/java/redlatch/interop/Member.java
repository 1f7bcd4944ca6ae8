package redlatch.interop;

import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;

/**
 * One thread that enters a guarded section again and again. What it counts is written by that thread alone, and read by others once
 * it has ended.
 */
final class Member {
  private final int index;
  private final Guard guard;
  private final long insideNanos;
  private final BooleanSupplier counting;
  private volatile long began; // the present or last wait, by System.nanoTime()
  private long wait;
  private Guard.Entry entry;

  // What counted.
  final Waits waits = new Waits();
  final Waits handOverTimes = new Waits();
  long operations;
  long handOvers;
  long reads;

  // All that was, and when the last of it ended.
  long end;
  long allOperations;
  long allHandOvers;

  /** Passes count if counting says so at their end. */
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
    allHandOvers += entry.handOver() ? 1 : 0;
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
    if (entry.handOver()) {
      handOvers++;
      handOverTimes.add(entry.nanos());
    }
  }

  /** The present wait counts from that System.nanoTime(). */
  void waitsSince(long nanoTime) {
    began = nanoTime;
  }

  /** The present wait has been given up; as a wait, it counts. */
  void gaveUp() {
    waits.add(System.nanoTime() - began);
  }
}
