package redlatch.interop;

import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.IntStream;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** Threads that enter and leave sections repeatedly. */
final class Sections implements Session {
  /** Capacity for readers: more than there are threads. A writer needs all of it. */
  private static final int EVERYBODY = 1 << 20;

  /** Time limit for the queue to fill. */
  private static final long QUEUE_LIMIT_NANOS = TimeUnit.SECONDS.toNanos(30);

  private final Load load;
  private final RedissonClient client;
  private final List<Section> sections; // of each thread
  private final List<Section> readSections; // the same as sections unless there are readers
  private final int capacity; // of each guard
  private final int weight; // of an entry that does not read

  Sections(Load load, Clients clients) {
    this.load = load;
    client = clients.client(load.clients().get(0));
    int n = load.clients().size();
    switch (load.primitive()) {
      case "rw" -> {
        sections = load.sections(clients, "write", n);
        readSections = load.sections(clients, "read", n);
        capacity = EVERYBODY;
        weight = EVERYBODY;
      }
      case "semaphore", "permits" -> {
        IntStream.range(0, load.keys())
            .forEach(key -> setPermits(load.object(clients, 0, load.primitive(), load.key(key))));
        sections = load.sections(clients, load.primitive(), n);
        readSections = sections;
        capacity = load.permits();
        weight = 1;
      }
      default -> {
        sections = load.sections(clients, load.primitive(), n);
        readSections = sections;
        capacity = 1;
        weight = 1;
      }
    }
  }

  private void setPermits(Object object) {
    if (object instanceof RSemaphore semaphore) {
      semaphore.trySetPermits(load.permits());
    } else {
      ((RPermitExpirableSemaphore) object).trySetPermits(load.permits());
    }
  }

  @Override
  public Outcome run(long nanos) throws Exception {
    var run = new Run();
    try {
      return run.measure(nanos);
    } catch (Exception e) {
      run.crew.abandon();
      throw e;
    }
  }

  /** One measurement. */
  private final class Run {
    private final List<Guard> guards = IntStream.range(0, load.keys()).mapToObj(key -> new Guard(capacity)).toList();
    private final List<Member> members =
        IntStream.range(0, sections.size())
            .mapToObj(i -> new Member(i, guardOf(i), load.insideNanos(), this::isCounting))
            .toList();
    private final LongAdder stuck = new LongAdder();
    private final Crew crew = new Crew(members.size(), this::work);
    private volatile boolean counting = !load.queued();

    private Guard guardOf(int thread) {
      return guards.get(thread % guards.size());
    }

    private boolean isCounting() {
      return counting;
    }

    Outcome measure(long nanos) throws Exception {
      long cpu = Usage.cpuNanos();
      crew.go();
      if (load.queued()) {
        awaitQueue();
      }
      counting = true;
      long start = System.nanoTime();
      TimeUnit.NANOSECONDS.sleep(nanos);
      counting = false;
      long took = System.nanoTime() - start;
      crew.stop(() -> guards.stream().mapToLong(Guard::entries).sum());
      return Outcome.of(took, Usage.cpuNanos() - cpu, stuck.sum(), members, guards);
    }

    /** Waits until the queue contains all threads but the holder, and a few that are about to queue. */
    private void awaitQueue() throws Exception {
      var queue = client.getQueue(queueOf(load.key(0)));
      long deadline = System.nanoTime() + QUEUE_LIMIT_NANOS;
      while (queue.size() < (members.size() - 1) * 95 / 100) {
        crew.check();
        if (System.nanoTime() > deadline) {
          throw new TimeoutException(queue.size() + " of " + members.size() + " are in the queue");
        }
        TimeUnit.MILLISECONDS.sleep(10);
      }
    }

    private void work(int i) throws Exception {
      var member = members.get(i);
      var random = new SplittableRandom(i);
      try {
        while (!crew.isStopped()) {
          boolean read = random.nextInt(100) < load.reads();
          member.pass(read ? readSections.get(i) : sections.get(i), read ? 1 : weight, read);
          if (load.turns()) {
            guardOf(i).awaitOther(i, crew::isStopped);
          }
        }
      } catch (Exception e) {
        if (!crew.isInterrupted()) {
          throw e;
        }
        member.gaveUp();
        stuck.increment();
      }
    }
  }

  private static String queueOf(String key) {
    return key.contains("{") ? "redisson_lock_queue:" + key : "redisson_lock_queue:{" + key + "}";
  }
}
