import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.retry.RetryForever;

/**
 * A candidate with the id ID that uses Curator's LeaderLatch or LeaderSelector, as specified by RECIPE. Each line of its standard input
 * consists of a thread and a command: "lead" waits for the leadership, "resign" resigns, and "leader" returns the leader. At SIGTERM the
 * candidate resigns.
 */
public class Candidate {
    interface Recipe {
        void lead() throws Exception;

        void resign() throws Exception;

        String leader() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(System.getenv("SESSION"));
        CuratorFramework client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), session, session, new RetryForever(100));
        client.start();
        client.blockUntilConnected();
        String path = System.getenv("LOCK_PATH");
        String id = System.getenv("ID");
        Recipe recipe = System.getenv("RECIPE").equals("LeaderLatch") ? latch(client, path, id) : selector(client, path, id);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> { // at SIGTERM
            try {
                recipe.resign();
            } catch (Exception e) {
                System.err.println(e);
            }
            client.close();
        }));
        System.out.println("ready");
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null;) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor()).execute(() -> {
                String outcome = "ok";
                try {
                    switch (words[1]) {
                        case "lead" -> recipe.lead();
                        case "resign" -> recipe.resign();
                        case "leader" -> outcome = recipe.leader();
                        default -> throw new IllegalArgumentException(words[1]);
                    }
                } catch (Exception e) {
                    outcome = e.toString();
                }
                System.out.println(words[0] + " " + words[1] + " " + outcome);
            });
        }
        System.exit(0);
    }

    static Recipe latch(CuratorFramework client, String path, String id) {
        LeaderLatch latch = new LeaderLatch(client, path, id);
        return new Recipe() {
            public void lead() throws Exception {
                latch.start();
                latch.await();
            }

            public void resign() throws Exception {
                latch.close();
            }

            public String leader() throws Exception {
                return latch.getLeader().getId();
            }
        };
    }

    static Recipe selector(CuratorFramework client, String path, String id) {
        CountDownLatch elected = new CountDownLatch(1);
        CountDownLatch resigned = new CountDownLatch(1);
        LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            public void takeLeadership(CuratorFramework client) throws Exception {
                elected.countDown();
                resigned.await();
            }
        });
        selector.setId(id);
        return new Recipe() {
            public void lead() throws Exception {
                selector.start();
                elected.await();
            }

            public void resign() {
                resigned.countDown();
            }

            public String leader() throws Exception {
                return selector.getLeader().getId();
            }
        };
    }
}
