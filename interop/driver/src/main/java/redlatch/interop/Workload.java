package redlatch.interop;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntConsumer;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Enters a section repeatedly.
 *
 * @param iterations entries per thread
 * @param threads number of new Java threads, started at the same time
 * @param leaseMillis lease of each entry, 0 for none
 * @param key the Redis key that a counter increments
 */
record Workload(int iterations, int threads, long leaseMillis, String key) {

  /** Increments the key in each section by a GET and a SET, which only the section guards. */
  Map<String, Object> counter(Object target, RedissonClient client) throws Exception {
    var counter = client.<String>getBucket(key, StringCodec.INSTANCE);
    return run(
        target,
        thread -> {
          var before = counter.get();
          counter.set(Long.toString(before == null ? 1 : Long.parseLong(before) + 1));
        });
  }

  /** Enters and leaves empty sections. */
  Map<String, Object> bench(Object target) throws Exception {
    return run(target, thread -> {});
  }

  /** Returns the number of entries, the time in nanoseconds, and the thread of each entry in order. */
  private Map<String, Object> run(Object target, IntConsumer body) throws Exception {
    var section = Section.of(target, leaseMillis);
    var owners = new int[iterations * threads];
    var entries = new AtomicInteger();
    var go = new CountDownLatch(1);
    var pool = Executors.newFixedThreadPool(threads);
    var done = new ExecutorCompletionService<Void>(pool);
    try {
      for (int i = 0; i < threads; i++) {
        int thread = i;
        done.submit(
            () -> {
              go.await();
              for (int n = 0; n < iterations; n++) {
                section.run(
                    () -> {
                      owners[entries.getAndIncrement()] = thread;
                      body.accept(thread);
                    });
              }
              return null;
            });
      }
      long start = System.nanoTime();
      go.countDown();
      for (int i = 0; i < threads; i++) {
        done.take().get();
      }
      long ns = System.nanoTime() - start;
      return Map.of("count", entries.get(), "ns", ns, "owners", Arrays.copyOf(owners, entries.get()));
    } catch (ExecutionException e) {
      throw e.getCause() instanceof Exception cause ? cause : e;
    } finally {
      pool.shutdownNow();
    }
  }
}
