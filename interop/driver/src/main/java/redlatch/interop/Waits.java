package redlatch.interop;

import java.util.Arrays;
import java.util.Collection;

/** Durations in nanoseconds, collected by one thread. */
final class Waits {
  private long[] samples = new long[64];
  private int size;

  void add(long nanos) {
    if (size == samples.length) {
      samples = Arrays.copyOf(samples, 2 * size);
    }
    samples[size++] = nanos;
  }

  private long[] toArray() {
    return Arrays.copyOf(samples, size);
  }

  static long[] all(Collection<Waits> waits) {
    return waits.stream().map(Waits::toArray).flatMapToLong(Arrays::stream).toArray();
  }
}
