import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryForever;

/**
 * Executes commands with Curator's InterProcessReadWriteLock. Each line of its standard input consists of a thread and a command. It
 * prints the outcome of each command. A thread is created by its first command. Package curator lists the commands, and executes them with
 * dsync.
 */
public class ReadWrite {
    static final int DIGITS = 10;

    static InterProcessReadWriteLock lock;
    static FileChannel file;

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(System.getenv("SESSION"));
        file = FileChannel.open(Path.of(System.getenv("FILE")), StandardOpenOption.READ, StandardOpenOption.WRITE);
        CuratorFramework client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), session, session, new RetryForever(100));
        client.start();
        client.blockUntilConnected();
        lock = new InterProcessReadWriteLock(client, System.getenv("LOCK_PATH"));
        System.out.println("ready");
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null;) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor()).execute(() -> {
                String outcome = "ok";
                try {
                    run(words);
                } catch (Exception e) {
                    outcome = e.toString();
                }
                System.out.println(words[0] + " " + words[1] + " " + outcome);
            });
        }
        System.exit(0);
    }

    static void run(String[] words) throws Exception {
        InterProcessMutex mutex = words[1].contains("read") ? lock.readLock() : lock.writeLock();
        int times = words.length > 2 ? Integer.parseInt(words[2]) : 0;
        switch (words[1]) {
            case "read", "write" -> mutex.acquire();
            case "unread", "unwrite" -> mutex.release();
            case "reads", "writes" -> {
                for (int i = 0; i < times; i++) {
                    mutex.acquire();
                    try {
                        if (words[1].equals("reads")) {
                            look();
                        } else {
                            add();
                            System.out.println(words[0] + " wrote");
                        }
                    } finally {
                        mutex.release();
                    }
                }
            }
            default -> throw new IllegalArgumentException(words[1]);
        }
    }

    /** Increments the first number, and sets the second number to the same value. */
    static void add() throws Exception {
        String next = String.format("%010d", Long.parseLong(numbers().substring(0, DIGITS)) + 1);
        for (int i = 0; i < 2; i++) {
            file.write(ByteBuffer.wrap(next.getBytes(StandardCharsets.US_ASCII)), i * DIGITS);
            Thread.sleep(1);
        }
    }

    /** Checks that no process writes in the meantime. */
    static void look() throws Exception {
        String before = numbers();
        Thread.sleep(1);
        String after = numbers();
        if (!before.equals(after)) {
            throw new IllegalStateException("torn: " + before + " became " + after);
        }
    }

    static String numbers() throws Exception {
        ByteBuffer b = ByteBuffer.allocate(2 * DIGITS);
        file.read(b, 0);
        return new String(b.array(), StandardCharsets.US_ASCII);
    }
}
