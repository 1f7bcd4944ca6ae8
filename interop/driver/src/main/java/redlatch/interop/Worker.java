package redlatch.interop;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** A thread with a name and a stable id that runs its tasks in order, so that ownership and re-entry are as in any program. */
final class Worker extends Thread {
  private final BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>();

  Worker(String name) {
    super(name);
    setDaemon(true);
    start();
  }

  void submit(Runnable task) {
    tasks.add(task);
  }

  @Override
  public void run() {
    while (true) {
      next().run();
    }
  }

  /** Waits for the next task. An interrupt of the idle thread is kept for that task. */
  private Runnable next() {
    boolean interrupted = false;
    while (true) {
      try {
        var task = tasks.take();
        if (interrupted) {
          interrupt();
        }
        return task;
      } catch (InterruptedException e) {
        interrupted = true;
      }
    }
  }
}
