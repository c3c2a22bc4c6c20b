import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;
import java.util.concurrent.TimeUnit;

/** Waits at most LIMIT milliseconds for Curator's InterProcessMutex at LOCK_PATH on the server ADDR, and prints whether it acquired it. */
public class Try {
    public static void main(String[] args) throws Exception {
        long limit = Long.parseLong(System.getenv("LIMIT"));
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), 30_000, 30_000, new RetryForever(100))) {
            client.start();
            client.blockUntilConnected();
            InterProcessMutex mutex = new InterProcessMutex(client, System.getenv("LOCK_PATH"));
            boolean granted = mutex.acquire(limit, TimeUnit.MILLISECONDS);
            System.out.println(granted ? "granted" : "refused");
            if (granted) {
                mutex.release();
            }
        }
    }
}
