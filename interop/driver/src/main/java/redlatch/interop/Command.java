package redlatch.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;

/**
 * One line of input. {@code op} determines which fields are used:
 *
 * <ul>
 *   <li>{@code hello}: returns the versions.
 *   <li>{@code open}: opens a client named {@code target.client}. {@code config} has the format of
 *       Redisson's configuration file. {@code close}: shuts the client down.
 *   <li>{@code ids}: returns the client's id, and the id, state and interrupt status of {@code
 *       thread}. It does not wait for the thread's command.
 *   <li>{@code invoke}: calls {@code method} with {@code args} on {@code target}.
 *   <li>{@code counter}, {@code bench}: runs {@code workload}, a {@link Workload}, on {@code target}.
 *   <li>{@code load}: opens a {@link Session} for {@code load}. The session's number is the command's
 *       {@code id}. {@code run}: runs it; {@code args} are its number and the time in nanoseconds.
 *       {@code unload}: closes it; {@code args} contains its number.
 *   <li>{@code interrupt}: interrupts {@code thread} at once.
 *   <li>{@code kill}: ends the process at once and without an answer, as a crash does.
 * </ul>
 *
 * @param id repeated in the answer
 * @param thread name of the Java thread that runs the command; default "main"
 */
record Command(
    long id,
    String op,
    String thread,
    Target target,
    String method,
    List<JsonNode> args,
    JsonNode config,
    Workload workload,
    Load load) {

  Command {
    thread = thread == null ? "main" : thread;
    args = args == null ? List.of() : args;
  }
}
