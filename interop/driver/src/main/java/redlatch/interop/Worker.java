package redlatch.interop;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** A named thread that runs its tasks in order. Its id is stable, and so is its ownership of locks. */
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

  /** Waits for the next task. An interrupt of the idle thread applies to that task. */
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
