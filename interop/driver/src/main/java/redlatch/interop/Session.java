package redlatch.interop;

/** A {@link Load} that is ready to be measured. */
interface Session {
  /** The cost of waiting or holding, without the session's own threads. */
  default Usage usage() {
    return new Usage(0, 0);
  }

  /** Runs the work for about the given time. */
  Outcome run(long nanos) throws Exception;

  /** Releases all holds. */
  default void close() throws Exception {}
}
