package redlatch.interop;

import com.fasterxml.jackson.annotation.JsonInclude;
import java.util.ArrayList;
import java.util.List;

/**
 * One line of output. {@code start} and {@code end} are the start and end of the call in Unix
 * nanoseconds, without communication. {@code interrupted} is the thread's interrupt status at the
 * end, which is then cleared.
 */
@JsonInclude(JsonInclude.Include.NON_DEFAULT)
record Answer(long id, Object result, Failure error, long start, long end, long threadId, boolean interrupted) {

  record Cause(String type, String message) {}

  /** An exception and its causes, from the outermost to the root. */
  record Failure(String type, String message, List<Cause> causes) {

    static Failure of(Throwable thrown) {
      var causes = new ArrayList<Cause>();
      for (var cause = thrown.getCause(); cause != null; cause = cause.getCause()) {
        causes.add(new Cause(cause.getClass().getName(), cause.getMessage()));
      }
      return new Failure(thrown.getClass().getName(), thrown.getMessage(), causes);
    }
  }
}
