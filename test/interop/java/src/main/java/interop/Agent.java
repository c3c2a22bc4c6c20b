package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Executes with Redisson the commands that it reads from its standard input, one per line, with tabs between the fields:
 *
 * <pre>number  client  thread  command  arguments</pre>
 *
 * A client is a RedissonClient, and a thread is a separate Java thread. Both have names. The commands of one thread run one after the
 * other. The response to each command is a line with its number, "ok" or "error", and a text.
 */
public final class Agent {
  private static final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
  private final Map<String, Worker> workers = new ConcurrentHashMap<>();
  private final Map<String, RLock> locks = new ConcurrentHashMap<>();

  /** A thread that can own locks. */
  private static final class Worker {
    private volatile Thread thread;
    private final ExecutorService executor = Executors.newSingleThreadExecutor(run -> {
      Thread made = new Thread(run);
      made.setDaemon(true);
      thread = made;
      return made;
    });
  }

  private interface Action {
    Object run() throws Exception;
  }

  public static void main(String[] args) throws IOException {
    System.setOut(System.err);
    Agent agent = new Agent();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    out.println("ready");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      agent.handle(line.split("\t", -1));
    }
    System.exit(0);
  }

  private void handle(String[] f) {
    String number = f[0];
    Worker worker = workers.computeIfAbsent(f[1] + "\t" + f[2], key -> new Worker());
    if (f[3].equals("interrupt")) {
      answer(number, () -> {
        worker.thread.interrupt();
        return "";
      });
      return;
    }
    worker.executor.execute(() -> answer(number, () -> run(f)));
  }

  private static void answer(String number, Action action) {
    String text;
    try {
      text = "ok\t" + action.run();
    } catch (Throwable e) {
      text = "error\t" + e.getClass().getSimpleName() + ": " + e.getMessage();
      for (Throwable cause = e.getCause(); cause != null; cause = cause.getCause()) {
        text += ", because of " + cause.getClass().getSimpleName() + ": " + cause.getMessage();
      }
    }
    out.println(number + "\t" + text.replace('\n', ' '));
  }

  private Object run(String[] f) throws Exception {
    String command = f[3];
    if (command.equals("open")) {
      clients.put(f[1], open(f[4], f[5], Long.parseLong(f[6])));
      return "";
    }
    RedissonClient client = clients.get(f[1]);
    switch (command) {
      case "close":
        clients.remove(f[1]).shutdown();
        return "";
      case "owner":
        return client.getId() + ":" + Thread.currentThread().getId();
      case "exit":
        Runtime.getRuntime().halt(3);
        return "";
      case "buy":
        return buy(client, f[4], f[5], Long.parseLong(f[6]));
      case "reprice":
        return reprice(client, f[4], f[5], f[6], Integer.parseInt(f[7]), Long.parseLong(f[8]));
      case "sections":
        return sections(lock(client, f), client, f[6], Integer.parseInt(f[7]));
      case "crowd":
        return crowd(client.getPermitExpirableSemaphore(f[5]), client.getAtomicLong(f[6]), Integer.parseInt(f[7]), Long.parseLong(f[8]));
      default:
        if (f[4].equals("permits")) {
          return permit(client.getPermitExpirableSemaphore(f[5]), command, f);
        }
        return f[4].equals("latch") ? count(client.getCountDownLatch(f[5]), command, f) : operate(lock(client, f), command, f);
    }
  }

  private static RedissonClient open(String mode, String addresses, long watchdog) {
    Config config = new Config();
    config.setLockWatchdogTimeout(watchdog);
    config.setThreads(4);
    config.setNettyThreads(2);
    if (mode.equals("cluster")) {
      config.useClusterServers().addNodeAddress(addresses.split(",")).setMasterConnectionMinimumIdleSize(1)
          .setSlaveConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
    } else if (mode.equals("replicated")) { // the first address is the master's
      String[] all = addresses.split(",");
      config.useMasterSlaveServers().setMasterAddress(all[0]).addSlaveAddress(Arrays.copyOfRange(all, 1, all.length))
          .setMasterConnectionMinimumIdleSize(1).setSlaveConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
    } else {
      config.useSingleServer().setAddress(addresses).setConnectionMinimumIdleSize(2).setSubscriptionConnectionMinimumIdleSize(1);
    }
    return Redisson.create(config);
  }

  /** Each thread has a separate object for a lock, because the object keeps the lease of its last lock call. */
  private RLock lock(RedissonClient client, String[] f) {
    return locks.computeIfAbsent(String.join("\t", f[1], f[2], f[4], f[5]), key -> lock(client, f[4], f[5]));
  }

  private static RLock lock(RedissonClient client, String kind, String name) {
    switch (kind) {
      case "plain":
      case "plain again": // another object
        return client.getLock(name);
      case "fair":
        return client.getFairLock(name);
      case "fenced":
        return client.getFencedLock(name);
      case "read":
        return client.getReadWriteLock(name).readLock();
      case "write":
        return client.getReadWriteLock(name).writeLock();
      default:
        throw new IllegalArgumentException(kind);
    }
  }

  private static Object operate(RLock lock, String command, String[] f) throws InterruptedException {
    switch (command) {
      case "lock":
        lock.lockInterruptibly(Long.parseLong(f[6]), TimeUnit.MILLISECONDS);
        return "";
      case "lockAt": // returns the time of the grant
        lock.lock();
        return now();
      case "unlockAt": // returns the time at which the unlock began
        long at = now();
        lock.unlock();
        return at;
      case "tryLock":
        return lock.tryLock();
      case "tryLockFor":
        return lock.tryLock(Long.parseLong(f[6]), Long.parseLong(f[7]), TimeUnit.MILLISECONDS);
      case "token":
        return ((RFencedLock) lock).lockAndGetToken();
      case "unlock":
        lock.unlock();
        return "";
      case "force":
        return lock.forceUnlock();
      case "isLocked":
        return lock.isLocked();
      case "isHeld":
        return lock.isHeldByCurrentThread();
      case "count":
        return lock.getHoldCount();
      case "ttl":
        return lock.remainTimeToLive();
      default:
        throw new IllegalArgumentException(command);
    }
  }

  private static Object count(RCountDownLatch latch, String command, String[] f) throws InterruptedException {
    switch (command) {
      case "set":
        return latch.trySetCount(Long.parseLong(f[6]));
      case "countDown":
        latch.countDown();
        return "";
      case "count":
        return latch.getCount();
      case "await":
        latch.await();
        return "";
      case "delete":
        return latch.delete();
      default:
        throw new IllegalArgumentException(command);
    }
  }

  private static Object permit(RPermitExpirableSemaphore permits, String command, String[] f) throws InterruptedException {
    switch (command) {
      case "set":
        return permits.trySetPermits(Integer.parseInt(f[6]));
      case "add":
        permits.addPermits(Integer.parseInt(f[6]));
        return "";
      case "acquire": // returns the permit's id
        long lease = Long.parseLong(f[6]);
        return lease < 0 ? permits.acquire() : permits.acquire(lease, TimeUnit.MILLISECONDS);
      case "tryAcquire":
        String id = permits.tryAcquire();
        return id == null ? "none" : id;
      case "release":
        permits.release(f[6]);
        return "";
      case "tryRelease":
        return permits.tryRelease(f[6]);
      case "available":
        return permits.availablePermits();
      default:
        throw new IllegalArgumentException(command);
    }
  }

  /** Acquires a permit n times, and counts itself as a holder each time. Returns how often there were more holders than limit. */
  private static int crowd(RPermitExpirableSemaphore permits, RAtomicLong inside, int n, long limit) throws InterruptedException {
    int tooMany = 0;
    for (int i = 0; i < n; i++) {
      String id = permits.acquire(1, TimeUnit.MINUTES);
      if (inside.incrementAndGet() > limit) {
        tooMany++;
      }
      inside.decrementAndGet();
      permits.release(id);
    }
    return tooMany;
  }

  /** In nanoseconds since 1970. */
  private static long now() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1_000_000_000L + now.getNano();
  }

  /** Buys a coupon from the stock in a key, if one is left: reads the stock, waits a moment, and writes it. */
  private static String buy(RedissonClient client, String name, String stock, long moment) throws InterruptedException {
    RLock lock = name.isEmpty() ? null : client.getLock(name);
    if (lock != null) {
      lock.lock();
    }
    try {
      RBucket<String> bucket = client.getBucket(stock, StringCodec.INSTANCE);
      long left = Long.parseLong(bucket.get());
      Thread.sleep(moment);
      if (left <= 0) {
        return "refused";
      }
      bucket.set(Long.toString(left - 1));
      return "issued";
    } finally {
      if (lock != null) {
        lock.unlock();
      }
    }
  }

  /** Raises two prices by 1 each, n times, with a pause between the two prices and before the next round. */
  private static String reprice(RedissonClient client, String name, String net, String gross, int n, long moment) throws InterruptedException {
    RLock lock = name.isEmpty() ? null : client.getReadWriteLock(name).writeLock();
    RBucket<String> first = client.getBucket(net, StringCodec.INSTANCE);
    RBucket<String> second = client.getBucket(gross, StringCodec.INSTANCE);
    for (int i = 0; i < n; i++) {
      if (lock != null) {
        lock.lock();
      }
      try {
        String price = Long.toString(Long.parseLong(first.get()) + 1);
        first.set(price);
        Thread.sleep(moment);
        second.set(price);
      } finally {
        if (lock != null) {
          lock.unlock();
        }
      }
      Thread.sleep(moment);
    }
    return "";
  }

  /** Acquires the lock n times, and returns how often another holder was inside. The key guest contains the current holder. */
  private static int sections(RLock lock, RedissonClient client, String guest, int n) {
    RBucket<String> bucket = client.getBucket(guest, StringCodec.INSTANCE);
    int met = 0;
    for (int i = 0; i < n; i++) {
      lock.lock();
      try {
        if (!"".equals(bucket.getAndSet("java"))) {
          met++;
        }
        if (!"java".equals(bucket.getAndSet(""))) {
          met++;
        }
      } finally {
        lock.unlock();
      }
    }
    return met;
  }
}
