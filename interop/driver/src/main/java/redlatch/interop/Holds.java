package redlatch.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.IntStream;
import org.redisson.api.RLock;

/** Threads of one client that hold all keys, which the client renews. */
final class Holds implements Session {
  private final List<RLock> locks;
  private final int threads;
  private final Usage usage;
  private final Crew crew;
  private final CountDownLatch held;
  private final CountDownLatch release = new CountDownLatch(1);
  private final LongAdder lost = new LongAdder();

  Holds(Load load, Clients clients) throws Exception {
    threads = load.threads();
    locks =
        IntStream.range(0, load.keys())
            .mapToObj(key -> (RLock) load.object(clients, 0, load.primitive(), load.key(key)))
            .toList();
    held = new CountDownLatch(threads);
    crew = new Crew(threads, this::hold);

    try {
      var before = Usage.now(); // after the creation of the threads and of the Java objects, which do not count
      crew.go();
      while (!held.await(10, TimeUnit.MILLISECONDS)) {
        crew.check();
      }
      usage = Usage.now().since(before);
    } catch (Exception e) {
      crew.abandon();
      throw e;
    }
  }

  private void hold(int thread) throws InterruptedException {
    var own = IntStream.range(0, locks.size()).filter(key -> key % threads == thread).mapToObj(locks::get).toList();
    own.forEach(RLock::lock);
    held.countDown();
    release.await();
    own.forEach(this::unlock);
  }

  private void unlock(RLock lock) {
    try {
      lock.unlock();
    } catch (IllegalMonitorStateException e) {
      lost.increment();
    }
  }

  @Override
  public Usage usage() {
    return usage;
  }

  @Override
  public Outcome run(long nanos) throws Exception {
    long cpu = Usage.cpuNanos();
    TimeUnit.NANOSECONDS.sleep(nanos);
    return Outcome.of(nanos, Usage.cpuNanos() - cpu, 0, List.of(), List.of());
  }

  /** Throws an exception if locks were lost. */
  @Override
  public void close() throws Exception {
    release.countDown();
    crew.join();
    if (lost.sum() > 0) {
      throw new IllegalStateException(lost + " of " + locks.size() + " locks were lost");
    }
  }
}
