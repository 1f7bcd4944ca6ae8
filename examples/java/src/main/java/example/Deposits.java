package example;

import java.util.Map;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RMap;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** The Java side: it makes the same deposits as main.go, to the same account, under the same lock. */
public final class Deposits {
    public static void main(String[] args) throws InterruptedException {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        RedissonClient redisson = Redisson.create(config);
        try {
            run(redisson);
        } finally {
            redisson.shutdown();
        }
    }

    private static void run(RedissonClient redisson) throws InterruptedException {
        RCountDownLatch ready = redisson.getCountDownLatch("example:java:ready");
        if (ready.getCount() == 0) {
            throw new IllegalStateException("start the Go program first");
        }
        ready.countDown();
        RLock lock = redisson.getLock("example:java:lock");
        RMap<String, String> account = redisson.getMap("example:java:account", StringCodec.INSTANCE);
        for (int i = 0; i < 10; i++) {
            lock.lock();
            try {
                deposit(account);
            } finally {
                lock.unlock();
            }
            Thread.sleep(20); // the other side gets its turn
        }
        redisson.getCountDownLatch("example:java:done").countDown();
    }

    /** Reads the account, checks it, and writes it. Only the lock makes this safe. */
    private static void deposit(RMap<String, String> account) {
        Map<String, String> fields = account.readAllMap();
        int balance = Integer.parseInt(fields.getOrDefault("balance", "0"));
        int go = Integer.parseInt(fields.getOrDefault("go", "0"));
        int java = Integer.parseInt(fields.getOrDefault("java", "0"));
        if (balance != go + java) {
            throw new IllegalStateException("a deposit was lost: " + fields);
        }
        account.put("java", Integer.toString(java + 1));
        account.put("balance", Integer.toString(balance + 1));
        System.out.printf("Java makes its deposit %d: the balance is %d.%n", java + 1, balance + 1);
    }
}
