package redlatch.interop;

/** Monotonic wall time: read once at the start and advanced by {@link System#nanoTime()}. */
final class Clock {
  private static final long OFFSET = unixNanos() - System.nanoTime();

  private Clock() {}

  /** Unix nanoseconds. */
  static long now() {
    return OFFSET + System.nanoTime();
  }

  private static long unixNanos() {
    var now = java.time.Instant.now();
    return now.getEpochSecond() * 1_000_000_000L + now.getNano();
  }
}
