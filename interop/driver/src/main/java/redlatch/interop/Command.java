package redlatch.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;

/**
 * One line of input. Which fields count depends on {@code op}:
 *
 * <ul>
 *   <li>{@code hello}: the versions.
 *   <li>{@code open}: a client named {@code target.client}, set up by {@code config}, which has the form of Redisson's own
 *       configuration file. {@code close}: shuts it down.
 *   <li>{@code ids}: the client's id, and the id, state and interrupt status of {@code thread}, without waiting for it.
 *   <li>{@code invoke}: calls {@code method} with {@code args} on {@code target}.
 *   <li>{@code counter}, {@code bench}: a {@link Workload} on {@code target}.
 *   <li>{@code load}: opens a {@link Session} for {@code load}; its number is the command's {@code id}. {@code run}: runs it; {@code
 *       args} are its number and a number of nanoseconds. {@code unload}: closes it; {@code args} are its number.
 *   <li>{@code interrupt}: interrupts {@code thread}, whatever it is doing.
 *   <li>{@code kill}: the process ends at once, without an answer, as in a crash.
 * </ul>
 *
 * @param id repeated in the answer
 * @param thread name of the Java thread that runs the command; "main" by default
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
