import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/**
 * Acquires Curator's InterProcessMutex at LOCK_PATH on the server ADDR the given number of times, and each time adds the given number to
 * the number in a file. It prints "ready" and begins when it reads a line.
 */
public class Counter {
    public static void main(String[] args) throws Exception {
        int holds = Integer.parseInt(System.getenv("DSYNC_TEST_COUNTER_HOLDS"));
        int each = Integer.parseInt(System.getenv("DSYNC_TEST_COUNTER_EACH"));
        Path file = Path.of(System.getenv("DSYNC_TEST_COUNTER_FILE"));
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), 30_000, 30_000, new RetryForever(100))) {
            client.start();
            client.blockUntilConnected();
            InterProcessMutex mutex = new InterProcessMutex(client, System.getenv("LOCK_PATH"));
            System.out.println("ready");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            for (int i = 0; i < holds; i++) {
                mutex.acquire();
                try {
                    for (int j = 0; j < each; j++) {
                        Files.writeString(file, String.valueOf(Integer.parseInt(Files.readString(file)) + 1));
                    }
                } finally {
                    mutex.release();
                }
            }
        }
    }
}
