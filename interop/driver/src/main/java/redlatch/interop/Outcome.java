package redlatch.interop;

import java.util.List;
import java.util.function.ToLongFunction;

/**
 * The result of a run. An operation is one entry and leave. A hand-off is an operation whose
 * predecessor on the same key was by another thread. Counts include operations that ended during the
 * run; those named "all" include later operations too.
 *
 * @param nanos the measured time; for a crowd, from just before the release to the last leave
 * @param perThread operations of each thread
 * @param waits nanoseconds until each entry, including abandoned waits
 * @param stuck number of abandoned waits
 * @param handOffTimes nanoseconds from just before a leave to the next entry
 * @param overlaps entries that exceeded the capacity of the section
 * @param lostUpdates lost updates of a plain counter
 * @param cpuNanos CPU time of the process
 */
record Outcome(
    long nanos,
    long operations,
    long handOffs,
    long reads,
    long[] perThread,
    long[] waits,
    long stuck,
    long[] handOffTimes,
    long allOperations,
    long allHandOffs,
    long overlaps,
    long lostUpdates,
    long cpuNanos) {

  static Outcome of(long nanos, long cpuNanos, long stuck, List<Member> members, List<Guard> guards) {
    return new Outcome(
        nanos,
        sum(members, member -> member.operations),
        sum(members, member -> member.handOffs),
        sum(members, member -> member.reads),
        members.stream().mapToLong(member -> member.operations).toArray(),
        Waits.all(members.stream().map(member -> member.waits).toList()),
        stuck,
        Waits.all(members.stream().map(member -> member.handOffTimes).toList()),
        sum(members, member -> member.allOperations),
        sum(members, member -> member.allHandOffs),
        sum(guards, Guard::overlaps),
        sum(guards, Guard::lostUpdates),
        cpuNanos);
  }

  private static <T> long sum(List<T> all, ToLongFunction<T> value) {
    return all.stream().mapToLong(value).sum();
  }
}
