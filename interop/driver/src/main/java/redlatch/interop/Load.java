package redlatch.interop;

import com.fasterxml.jackson.annotation.JsonValue;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;

/**
 * Work for many threads of this process, to be measured.
 *
 * @param shape the task of the threads, see {@link Shape}
 * @param primitive a kind as in {@link Target}, or {@code rw} for both locks of a read-write lock
 * @param clients names of open clients
 * @param threads threads per client; per-thread results start with the threads of the first client
 * @param name the key, if there is only one
 * @param keys number of keys; if there are several, they are name:0, name:1 and so on, and thread n
 *     uses key n mod keys
 * @param permits of a semaphore
 * @param reads for rw: percentage of entries that read
 * @param insideNanos sleep in each section
 * @param turns a thread that has left waits until another one has entered
 * @param queued counting starts when nearly all threads are in the queue of a fair lock
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
    /** All threads enter and leave repeatedly: {@link Sections}. */
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

  /** Prepares the load. The preparation is not measured. */
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

  /** The sections of all threads of the first n clients. */
  List<Section> sections(Clients open, String kind, int n) {
    return IntStream.range(0, n * threads)
        .mapToObj(thread -> section(open, thread / threads, kind, key(thread)))
        .toList();
  }

  Section section(Clients open, int client, String kind, String key) {
    return Section.of(object(open, client, kind, key), 0);
  }

  Object object(Clients open, int client, String kind, String key) {
    return open.object(new Target(clients.get(client), kind, key, null, null));
  }
}
