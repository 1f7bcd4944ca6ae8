package redlatch.interop;

import com.fasterxml.jackson.annotation.JsonValue;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;

/**
 * Work for many threads, all of it within this process, for measuring.
 *
 * @param shape what the threads do, see {@link Shape}
 * @param primitive a kind as in {@link Target}, or {@code rw} for both locks of a read-write lock
 * @param clients names of open clients
 * @param threads how many each client has; those of the first client come first in all counts
 * @param name the key, if there is one
 * @param keys how many keys there are; with more than one they are name:0, name:1 ..., and thread n uses the n-th, or, if there are
 *     fewer, starts over
 * @param permits of a semaphore
 * @param reads percentage of entries, of rw, that read
 * @param insideNanos slept in each section
 * @param turns who has left waits until another has entered
 * @param queued counting begins once nearly all threads stand in the queue of a fair lock
 */
record Load(
    Shape shape,
    String primitive,
    List<String> clients,
    int threads,
    String name,
    int keys,
    int permits,
    int reads,
    long insideNanos,
    boolean turns,
    boolean queued) {

  enum Shape {
    /** All threads enter and leave again and again: {@link Sections}. */
    SECTION,
    /** All threads wait for one lock that the last of the clients holds: {@link Crowd}. */
    CROWD,
    /** One client holds many locks: {@link Holds}. */
    HOLDS;

    @JsonValue
    String text() {
      return name().toLowerCase(Locale.ROOT);
    }
  }

  /** Prepares the load: what of it is not to be measured. */
  Session open(Clients clients) throws Exception {
    return switch (shape) {
      case SECTION -> new Sections(this, clients);
      case CROWD -> new Crowd(this, clients);
      case HOLDS -> new Holds(this, clients);
    };
  }

  String key(int n) {
    return keys == 1 ? name : name + ":" + n % keys;
  }

  /** The section of each thread of the first n clients. */
  List<Section> sections(Clients open, String kind, int n) {
    return IntStream.range(0, n * threads).mapToObj(thread -> section(open, thread / threads, kind, key(thread))).toList();
  }

  Section section(Clients open, int client, String kind, String key) {
    return Section.of(object(open, client, kind, key), 0);
  }

  Object object(Clients open, int client, String kind, String key) {
    return open.object(new Target(clients.get(client), kind, key, null, null));
  }
}
