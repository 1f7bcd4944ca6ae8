package redlatch.interop;

import java.util.List;
import java.util.function.ToLongFunction;

/**
 * What became of a run. An operation is an entry that has been left, a hand-over one by another thread than the entry before it on
 * the same key. Those that ended within the time of the run count; those named "all" include the rest.
 *
 * @param nanos in which operations counted; of a crowd, from just before the release to the last thread's leave
 * @param perThread operations of each thread
 * @param waits nanoseconds until each entry; one that had to be given up, because nobody came through any more, is here too
 * @param stuck how many had to be given up
 * @param handOverTimes nanoseconds from just before a thread left to the entry of the other
 * @param overlaps entries that found too many inside
 * @param lostUpdates updates of a plain counter that others wrote over
 * @param cpuNanos processor time that the process spent
 */
record Outcome(
    long nanos,
    long operations,
    long handOvers,
    long reads,
    long[] perThread,
    long[] waits,
    long stuck,
    long[] handOverTimes,
    long allOperations,
    long allHandOvers,
    long overlaps,
    long lostUpdates,
    long cpuNanos) {

  static Outcome of(long nanos, long cpuNanos, long stuck, List<Member> members, List<Guard> guards) {
    return new Outcome(
        nanos,
        sum(members, member -> member.operations),
        sum(members, member -> member.handOvers),
        sum(members, member -> member.reads),
        members.stream().mapToLong(member -> member.operations).toArray(),
        Waits.all(members.stream().map(member -> member.waits).toList()),
        stuck,
        Waits.all(members.stream().map(member -> member.handOverTimes).toList()),
        sum(members, member -> member.allOperations),
        sum(members, member -> member.allHandOvers),
        sum(guards, Guard::overlaps),
        sum(guards, Guard::lostUpdates),
        cpuNanos);
  }

  private static <T> long sum(List<T> all, ToLongFunction<T> value) {
    return all.stream().mapToLong(value).sum();
  }
}
