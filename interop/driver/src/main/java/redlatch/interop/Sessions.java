package redlatch.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The open sessions. */
final class Sessions {
  private final Map<Long, Session> sessions = new ConcurrentHashMap<>();

  void add(long id, Session session) {
    sessions.put(id, session);
  }

  Outcome run(long id, long nanos) throws Exception {
    var session = sessions.get(id);
    if (session == null) {
      throw new IllegalArgumentException("no such session: " + id);
    }
    return session.run(nanos);
  }

  void close(long id) throws Exception {
    var session = sessions.remove(id);
    if (session != null) {
      session.close();
    }
  }
}
