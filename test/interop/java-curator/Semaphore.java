import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;

/**
 * Executes commands with Curator's InterProcessSemaphoreV2. Each line of its standard input consists of a thread and a command. It
 * prints the outcome of each command. A thread is created by its first command. Package curator lists the commands, and executes them with
 * dsync.
 */
public class Semaphore {
    static CuratorFramework client;
    static SharedCount shared; // null if the limit is a constant
    static final AtomicInteger troubles = new AtomicInteger();
    static final ThreadLocal<InterProcessSemaphoreV2> semaphore = new ThreadLocal<>();
    static final ThreadLocal<List<Lease>> held = ThreadLocal.withInitial(ArrayList::new);

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(System.getenv("SESSION"));
        client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), session, session, new RetryForever(100));
        client.getConnectionStateListenable().addListener((c, state) -> {
            if (state == ConnectionState.SUSPENDED || state == ConnectionState.LOST) {
                troubles.incrementAndGet();
            }
        });
        client.start();
        client.blockUntilConnected();
        if (System.getenv("SHARED") != null) {
            shared = new SharedCount(client, System.getenv("LOCK_PATH"), 1);
            shared.start();
        }
        System.out.println("ready");
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null;) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor()).execute(() -> {
                String outcome = "ok";
                try {
                    outcome = run(words);
                } catch (Exception e) {
                    outcome = e.toString();
                }
                System.out.println(words[0] + " " + words[1] + " " + outcome);
            });
        }
        System.exit(0);
    }

    static String run(String[] words) throws Exception {
        if (semaphore.get() == null) {
            String path = System.getenv("LOCK_PATH");
            InterProcessSemaphoreV2 s = shared != null
                ? new InterProcessSemaphoreV2(client, path, shared)
                : new InterProcessSemaphoreV2(client, path, Integer.parseInt(System.getenv("LIMIT")));
            s.setNodeData((System.getenv("ID") + words[0]).getBytes(StandardCharsets.UTF_8));
            semaphore.set(s);
        }
        switch (words[1]) {
            case "take" -> held.get().addAll(semaphore.get().acquire(Integer.parseInt(words[2])));
            case "try" -> {
                Collection<Lease> leases = semaphore.get().acquire(Integer.parseInt(words[2]), 0, TimeUnit.MILLISECONDS);
                if (leases == null) {
                    return "refused";
                }
                held.get().addAll(leases);
            }
            case "give" -> {
                semaphore.get().returnAll(held.get());
                held.get().clear();
            }
            case "limit" -> {
                return String.valueOf(shared.getCount());
            }
            case "set" -> shared.setCount(Integer.parseInt(words[2]));
            case "work" -> {
                while (true) {
                    int before = troubles.get();
                    Lease lease = semaphore.get().acquire();
                    say(words[0], "holds", "1");
                    Thread.sleep(ThreadLocalRandom.current().nextInt(50));
                    say(words[0], troubles.get() == before ? "frees" : "lost", "1");
                    semaphore.get().returnLease(lease);
                }
            }
            default -> throw new IllegalArgumentException(words[1]);
        }
        return "ok";
    }

    static void say(String thread, String what, String permits) {
        System.out.println(thread + " " + what + " " + permits + " " + ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now())
            + " " + System.getenv("ID") + thread);
    }
}
