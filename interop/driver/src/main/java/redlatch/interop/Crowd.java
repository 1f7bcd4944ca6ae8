package redlatch.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * Threads that wait for a lock that the last client holds. A run releases the lock, and each thread
 * then enters once. Wait times start at the release.
 */
final class Crowd implements Session {
  private final Guard guard = new Guard(1);
  private final List<Member> members;
  private final Usage usage;
  private final Crew crew;

  private final Crew holder;
  private final CountDownLatch held = new CountDownLatch(1);
  private final CountDownLatch release = new CountDownLatch(1);
  private volatile long released; // System.nanoTime() just before the release

  Crowd(Load load, Clients clients) throws Exception {
    int last = load.clients().size() - 1;
    for (int client = 0; client <= last; client++) {
      load.section(clients, client, load.primitive(), load.name() + ":warm:" + client).run(() -> {});
    }
    var sections = load.sections(clients, load.primitive(), last);
    members =
        IntStream.range(0, sections.size())
            .mapToObj(i -> new Member(i, guard, load.insideNanos(), () -> true))
            .toList();
    holder = new Crew(1, member -> hold(load.section(clients, last, load.primitive(), load.name())));
    crew = new Crew(members.size(), i -> members.get(i).pass(sections.get(i), 1, false));

    try {
      var before = Usage.now(); // after the start of the session's threads, which do not count
      gather();
      usage = Usage.now().since(before);
    } catch (Exception e) {
      crew.abandon();
      holder.abandon();
      throw e;
    }
  }

  private void gather() throws Exception {
    holder.go();
    while (!held.await(10, TimeUnit.MILLISECONDS)) {
      holder.check();
    }
    crew.go();
    do {
      TimeUnit.SECONDS.sleep(1);
    } while (!crew.isWaiting());
  }

  private void hold(Section section) throws InterruptedException {
    section.run(
        () -> {
          var entry = guard.enter(members.size(), 1);
          held.countDown();
          awaitRelease();
          guard.leave(entry, 1);
          released = guard.leaving();
          members.forEach(member -> member.waitsSince(released));
        });
  }

  private void awaitRelease() {
    try {
      release.await();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
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
    release.countDown();
    holder.join();
    crew.join();
    long end = members.stream().mapToLong(member -> member.end).max().orElse(released);
    return Outcome.of(end - released, Usage.cpuNanos() - cpu, 0, members, List.of(guard));
  }

  @Override
  public void close() throws Exception {
    release.countDown();
    holder.join();
    crew.join();
  }
}
