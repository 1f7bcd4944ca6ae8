package redlatch.interop;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;

/** Runs a body while holding a lock or a permit. */
@FunctionalInterface
interface Section {
  void run(Runnable body) throws InterruptedException;

  /**
   * Returns the section that target guards. leaseMillis 0 means the watchdog's lease, or a permit
   * that never expires.
   */
  static Section of(Object target, long leaseMillis) {
    if (target instanceof RLock lock) {
      return body -> {
        lock.lockInterruptibly(leaseMillis == 0 ? -1 : leaseMillis, TimeUnit.MILLISECONDS);
        try {
          body.run();
        } finally {
          lock.unlock();
        }
      };
    }
    if (target instanceof RSemaphore semaphore) {
      return body -> {
        semaphore.acquire();
        try {
          body.run();
        } finally {
          semaphore.release();
        }
      };
    }
    if (target instanceof RPermitExpirableSemaphore permits) {
      return body -> {
        var permit = permits.acquire(leaseMillis == 0 ? -1 : leaseMillis, TimeUnit.MILLISECONDS);
        try {
          body.run();
        } finally {
          permits.release(permit);
        }
      };
    }
    throw new IllegalArgumentException("guards no section: " + target);
  }
}
