package redlatch.interop;

/** A {@link Load} that is ready to be measured. */
interface Session {
  /** What waiting or holding takes, beyond what was there before and the session's own threads. */
  default Usage usage() {
    return new Usage(0, 0);
  }

  /** Does the work for about that long. */
  Outcome run(long nanos) throws Exception;

  /** Gives back what is held, if anything. */
  default void close() throws Exception {}
}
