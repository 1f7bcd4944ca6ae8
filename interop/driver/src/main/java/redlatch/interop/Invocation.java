package redlatch.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;

/**
 * Calls a method of Redisson's API by its name. It selects the overload whose parameters accept the
 * arguments. A number is an int or a long. A string is a String, a TimeUnit ("SECONDS") or a
 * Duration ("PT0.5S"). An array is a list of strings.
 */
final class Invocation {
  private static final List<Class<?>> APIS =
      List.of(RFencedLock.class, RLock.class, RSemaphore.class, RPermitExpirableSemaphore.class, RCountDownLatch.class);

  private Invocation() {}

  /** Returns the method's result. If the method returns a future, waits for it. */
  static Object call(Object target, String method, List<JsonNode> args) throws Throwable {
    for (var candidate : methods(target, method, args.size())) {
      Object[] values;
      try {
        values = convert(args, candidate.getParameterTypes());
      } catch (IllegalArgumentException e) {
        continue;
      }
      return result(invoke(candidate, target, values));
    }
    throw new NoSuchMethodException(method + args);
  }

  private static List<Method> methods(Object target, String name, int arity) {
    return APIS.stream()
        .filter(api -> api.isInstance(target))
        .limit(1)
        .flatMap(api -> Stream.of(api.getMethods()))
        .filter(method -> method.getName().equals(name) && method.getParameterCount() == arity && !method.isBridge())
        .sorted(Comparator.comparing(method -> Arrays.toString(method.getParameterTypes())))
        .toList();
  }

  private static Object invoke(Method method, Object target, Object[] args) throws Throwable {
    try {
      return method.invoke(target, args);
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  private static Object result(Object value) throws Throwable {
    if (!(value instanceof Future<?> future)) {
      return value;
    }
    try {
      return future.get();
    } catch (ExecutionException e) {
      throw e.getCause();
    } catch (InterruptedException e) {
      future.cancel(true);
      throw e;
    }
  }

  private static Object[] convert(List<JsonNode> args, Class<?>[] types) {
    var values = new Object[types.length];
    for (int i = 0; i < types.length; i++) {
      values[i] = convert(args.get(i), types[i]);
    }
    return values;
  }

  /** Throws an IllegalArgumentException if the argument cannot be converted to the type. */
  private static Object convert(JsonNode arg, Class<?> type) {
    if (type == int.class && arg.canConvertToInt() && arg.isIntegralNumber()) {
      return arg.intValue();
    }
    if (type == long.class && arg.isIntegralNumber()) {
      return arg.longValue();
    }
    if (type == String.class && arg.isTextual()) {
      return arg.textValue();
    }
    if (type == TimeUnit.class && arg.isTextual()) {
      return TimeUnit.valueOf(arg.textValue());
    }
    if (type == Duration.class && arg.isTextual() && arg.textValue().startsWith("P")) {
      return Duration.parse(arg.textValue());
    }
    if (type == List.class && arg.isArray()) {
      var values = new ArrayList<String>();
      arg.forEach(value -> values.add(value.asText()));
      return values;
    }
    throw new IllegalArgumentException(arg + " is no " + type);
  }
}
