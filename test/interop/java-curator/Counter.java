import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/**
 * Adds to the number in FILE so many times, under an InterProcessMutex of Curator on PATH of the server ADDR. It says "ready", begins
 * at a line of input, and then says "done" or what went wrong.
 */
public class Counter {
    public static void main(String[] args) throws Exception {
        int increments = Integer.parseInt(System.getenv("INCREMENTS"));
        Path file = Path.of(System.getenv("FILE"));
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), 30_000, 30_000, new RetryForever(100))) {
            client.start();
            client.blockUntilConnected();
            InterProcessMutex mutex = new InterProcessMutex(client, System.getenv("LOCK_PATH"));
            System.out.println("ready");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            for (int i = 0; i < increments; i++) {
                mutex.acquire();
                try {
                    Files.writeString(file, String.valueOf(Integer.parseInt(Files.readString(file)) + 1));
                } finally {
                    mutex.release();
                }
            }
            System.out.println("done");
        } catch (Exception e) {
            System.out.println(e);
        }
    }
}
