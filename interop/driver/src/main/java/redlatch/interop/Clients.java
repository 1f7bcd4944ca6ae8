package redlatch.interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The open Redisson clients and their objects. */
final class Clients {
  private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
  private final Map<Target, Object> objects = new ConcurrentHashMap<>();

  /** Opens a client. {@code config} is JSON, which Redisson's YAML parser accepts. */
  RedissonClient open(String name, String config) throws Exception {
    var client = Redisson.create(Config.fromYAML(config));
    if (clients.putIfAbsent(name, client) != null) {
      client.shutdown();
      throw new IllegalArgumentException("client is open: " + name);
    }
    return client;
  }

  void close(String name) {
    var client = client(name);
    clients.remove(name);
    objects.keySet().removeIf(target -> uses(target, name));
    client.shutdown(0, 2, TimeUnit.SECONDS);
  }

  RedissonClient client(String name) {
    var client = name == null ? null : clients.get(name);
    if (client == null) {
      throw new IllegalArgumentException("no such client: " + name);
    }
    return client;
  }

  Object object(Target target) {
    var object = objects.get(target);
    if (object == null) {
      var made = make(target);
      object = objects.putIfAbsent(target, made);
      object = object == null ? made : object;
    }
    return object;
  }

  private Object make(Target target) {
    var name = target.name();
    return switch (target.kind()) {
      case "multi" -> client(target.client()).getMultiLock(members(target));
      case "red" -> redLock(target);
      case "lock" -> client(target.client()).getLock(name);
      case "spin" -> client(target.client()).getSpinLock(name);
      case "fair" -> client(target.client()).getFairLock(name);
      case "fenced" -> client(target.client()).getFencedLock(name);
      case "nonreentrant" -> sinceRedisson4(target, "getNonReentrantLock");
      case "nonreentrantfair" -> sinceRedisson4(target, "getNonReentrantFairLock");
      case "read" -> client(target.client()).getReadWriteLock(name).readLock();
      case "write" -> client(target.client()).getReadWriteLock(name).writeLock();
      case "semaphore" -> client(target.client()).getSemaphore(name);
      case "permits" -> client(target.client()).getPermitExpirableSemaphore(name);
      case "latch" -> client(target.client()).getCountDownLatch(name);
      default -> throw new IllegalArgumentException("no such kind: " + target.kind());
    };
  }

  @SuppressWarnings("deprecation")
  private RLock redLock(Target target) {
    return client(target.client()).getRedLock(members(target));
  }

  /** Uses reflection, because this source is also compiled against Redisson 3, without the getter. */
  private Object sinceRedisson4(Target target, String getter) {
    try {
      return RedissonClient.class.getMethod(getter, String.class).invoke(client(target.client()), target.name());
    } catch (ReflectiveOperationException e) {
      throw new UnsupportedOperationException(getter, e);
    }
  }

  private RLock[] members(Target target) {
    return target.members().stream().map(member -> (RLock) object(member)).toArray(RLock[]::new);
  }

  private static boolean uses(Target target, String client) {
    List<Target> members = target.members() == null ? List.of() : target.members();
    return client.equals(target.client()) || members.stream().anyMatch(member -> uses(member, client));
  }
}
