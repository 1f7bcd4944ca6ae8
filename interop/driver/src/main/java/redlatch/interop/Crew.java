package redlatch.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongSupplier;
import java.util.stream.IntStream;

/** Threads that start together, do one thing each, and are asked to stop together. */
final class Crew {
  /** How long those asked to stop may go without any progress before they are interrupted. */
  private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(2);

  /** What a member does. It returns soon after {@link #isStopped()}. */
  interface Task {
    void run(int member) throws Exception;
  }

  private final CountDownLatch go = new CountDownLatch(1);
  private final AtomicReference<Throwable> failure = new AtomicReference<>();
  private final List<Thread> threads;
  private volatile boolean stopped;
  private volatile boolean interrupted;

  Crew(int size, Task task) {
    threads = IntStream.range(0, size).mapToObj(member -> new Thread(() -> run(task, member), "crew-" + member)).toList();
    for (var thread : threads) {
      thread.setDaemon(true);
      thread.start();
    }
  }

  private void run(Task task, int member) {
    try {
      go.await();
      task.run(member);
    } catch (Throwable e) {
      failure.compareAndSet(null, e);
    }
  }

  void go() {
    go.countDown();
  }

  boolean isStopped() {
    return stopped;
  }

  /** Whether those that are left have been interrupted: they make no progress. */
  boolean isInterrupted() {
    return interrupted;
  }

  /** Whether each member waits for something at this moment, or has ended. */
  boolean isWaiting() throws Exception {
    check();
    return threads.stream()
        .map(Thread::getState)
        .allMatch(state -> state == Thread.State.WAITING || state == Thread.State.TIMED_WAITING || state == Thread.State.TERMINATED);
  }

  /** Asks all to stop, and waits until they have. Those left when progress has ceased are interrupted. */
  void stop(LongSupplier progress) throws Exception {
    stopped = true;
    long seen = progress.getAsLong();
    long since = System.nanoTime();
    for (var thread : threads) {
      while (thread.isAlive()) {
        thread.join(10);
        if (progress.getAsLong() != seen) {
          seen = progress.getAsLong();
          since = System.nanoTime();
        } else if (System.nanoTime() - since > PATIENCE_NANOS) {
          interrupted = true;
          threads.forEach(Thread::interrupt);
        }
      }
    }
    check();
  }

  /** Waits until all are gone. */
  void join() throws Exception {
    for (var thread : threads) {
      thread.join();
    }
    check();
  }

  /** Has all end as soon as they can, and does not wait: for when something has failed. */
  void abandon() {
    stopped = true;
    interrupted = true;
    threads.forEach(Thread::interrupt);
  }

  /** Throws what the first member to fail threw. */
  void check() throws Exception {
    var thrown = failure.get();
    if (thrown != null) {
      throw thrown instanceof Exception e ? e : new IllegalStateException(thrown);
    }
  }
}
