package redlatch.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongSupplier;
import java.util.stream.IntStream;

/** Threads that start at the same time, run one task each, and are stopped together. */
final class Crew {
  /** Time without progress after which stopped threads are interrupted. */
  private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(2);

  /** The task of a member. It must return soon after {@link #isStopped()} becomes true. */
  interface Task {
    void run(int member) throws Exception;
  }

  private final CountDownLatch go = new CountDownLatch(1);
  private final AtomicReference<Throwable> failure = new AtomicReference<>();
  private final List<Thread> threads;
  private volatile boolean stopped;
  private volatile boolean interrupted;

  Crew(int size, Task task) {
    threads =
        IntStream.range(0, size)
            .mapToObj(member -> new Thread(() -> run(task, member), "crew-" + member))
            .toList();
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

  /** Whether the remaining threads were interrupted because they made no progress. */
  boolean isInterrupted() {
    return interrupted;
  }

  /** Whether each thread is in a waiting state or has ended. */
  boolean isWaiting() throws Exception {
    check();
    return threads.stream()
        .map(Thread::getState)
        .allMatch(
            state ->
                state == Thread.State.WAITING
                    || state == Thread.State.TIMED_WAITING
                    || state == Thread.State.TERMINATED);
  }

  /** Stops all threads and waits for them. Interrupts them if there is no more progress. */
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

  /** Waits until all threads have ended. */
  void join() throws Exception {
    for (var thread : threads) {
      thread.join();
    }
    check();
  }

  /** Interrupts all threads without waiting for them, after a failure. */
  void abandon() {
    stopped = true;
    interrupted = true;
    threads.forEach(Thread::interrupt);
  }

  /** Throws the exception of the first thread that failed, if any. */
  void check() throws Exception {
    var thrown = failure.get();
    if (thrown != null) {
      throw thrown instanceof Exception e ? e : new IllegalStateException(thrown);
    }
  }
}
