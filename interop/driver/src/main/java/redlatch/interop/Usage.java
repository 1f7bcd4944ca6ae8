package redlatch.interop;

import java.lang.management.ManagementFactory;
import java.util.concurrent.TimeUnit;

/**
 * The resource usage of the process.
 *
 * @param heapBytes in use after a garbage collection
 * @param threads Java threads, including those of Redisson
 */
record Usage(long heapBytes, int threads) {

  private static final int LOOKS = 20; // upper limit
  private static final int STEADY_LOOKS = 3; // consecutive measurements without a decrease
  private static final long STEADY_BYTES = 32 << 10;

  static Usage now() throws InterruptedException {
    return new Usage(settledHeap(), ManagementFactory.getThreadMXBean().getThreadCount());
  }

  /** Repeats until the heap stops shrinking, because closed objects are freed gradually. */
  private static long settledHeap() throws InterruptedException {
    long heap = collect();
    for (int look = 1, steady = 1; look < LOOKS && steady < STEADY_LOOKS; look++) {
      TimeUnit.MILLISECONDS.sleep(200);
      long before = heap;
      heap = collect();
      steady = before - heap < STEADY_BYTES ? steady + 1 : 1;
    }
    return heap;
  }

  private static long collect() {
    System.gc();
    return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
  }

  Usage since(Usage before) {
    return new Usage(heapBytes - before.heapBytes, threads - before.threads);
  }

  /** CPU time of the process, in nanoseconds. */
  static long cpuNanos() {
    return ManagementFactory.getPlatformMXBean(com.sun.management.OperatingSystemMXBean.class).getProcessCpuTime();
  }
}
