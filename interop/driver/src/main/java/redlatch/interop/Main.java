package redlatch.interop;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.redisson.Redisson;

/**
 * Reads one JSON {@link Command} per line from standard input. Writes one {@link Answer} per line to
 * standard output, in the order in which the commands end. Exits at the end of the input, without
 * closing any client.
 */
public final class Main {
  private final ObjectMapper json =
      new ObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, true);
  private final PrintStream out;
  private final Clients clients = new Clients();
  private final Sessions sessions = new Sessions();
  private final Map<String, Worker> workers = new HashMap<>(); // used only by the thread that reads commands

  private Main(PrintStream out) {
    this.out = out;
  }

  public static void main(String[] args) throws IOException {
    var out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    System.setOut(System.err); // the output of libraries must not mix with the answers
    int status = 1;
    try {
      new Main(out).read();
      status = 0;
    } finally {
      Runtime.getRuntime().halt(status);
    }
  }

  private void read() throws IOException {
    var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (var line = in.readLine(); line != null; line = in.readLine()) {
      accept(json.readValue(line, Command.class));
    }
  }

  /** Passes the command to its thread. Commands that must not wait for the thread run here. */
  private void accept(Command command) {
    var worker = workers.computeIfAbsent(command.thread(), Worker::new);
    switch (command.op()) {
      case "kill" -> Runtime.getRuntime().halt(137);
      case "interrupt", "ids" -> answer(command, worker);
      default -> worker.submit(() -> answer(command, worker));
    }
  }

  private void answer(Command command, Worker worker) {
    Object result = null;
    Answer.Failure failure = null;
    long start = Clock.now();
    try {
      result = run(command, worker);
    } catch (Throwable e) {
      failure = Answer.Failure.of(e);
    }
    long end = Clock.now();
    write(new Answer(command.id(), result, failure, start, end, worker.getId(), Thread.interrupted()));
  }

  private Object run(Command command, Worker worker) throws Throwable {
    var target = command.target();
    return switch (command.op()) {
      case "hello" -> Map.of(
          "redisson", String.valueOf(Redisson.class.getPackage().getImplementationVersion()),
          "java", System.getProperty("java.version"),
          "pid", ProcessHandle.current().pid());
      case "open" -> clients.open(target.client(), command.config().toString()).getId();
      case "close" -> {
        clients.close(target.client());
        yield null;
      }
      case "ids" -> Map.of(
          "client", clients.client(target.client()).getId(),
          "thread", worker.getId(),
          "state", worker.getState(),
          "interrupted", worker.isInterrupted());
      case "interrupt" -> {
        worker.interrupt();
        yield null;
      }
      case "invoke" -> Invocation.call(clients.object(target), command.method(), command.args());
      case "counter" -> command.workload().counter(clients.object(target), clients.client(target.client()));
      case "bench" -> command.workload().bench(clients.object(target));
      case "load" -> {
        var session = command.load().open(clients);
        sessions.add(command.id(), session);
        yield Map.of("session", command.id(), "usage", session.usage());
      }
      case "run" -> sessions.run(command.args().get(0).longValue(), command.args().get(1).longValue());
      case "unload" -> {
        sessions.close(command.args().get(0).longValue());
        yield null;
      }
      default -> throw new IllegalArgumentException("no such op: " + command.op());
    };
  }

  private synchronized void write(Answer answer) {
    try {
      out.println(json.writeValueAsString(answer));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    out.flush();
  }
}
