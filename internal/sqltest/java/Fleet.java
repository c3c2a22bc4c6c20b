import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.ThreadLocalRandom;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.mariadb.jdbc.MariaDbPoolDataSource;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.jdbc.core.JdbcTemplate;

// Fleet runs jobs under ShedLock until its standard input ends. Its arguments
// are the URL of the database, a number n, and the periods of the jobs in
// milliseconds. One of n holds is never released; 0 means none. Fleet prints
// "ready" and then violations.
class Fleet {
	static final Duration AT_MOST = Duration.ofSeconds(10);
	static volatile boolean over;

	public static void main(String[] args) throws Exception {
		var db = new JdbcTemplate(new MariaDbPoolDataSource(args[0]));
		var who = "java " + ProcessHandle.current().pid();
		var provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
			.withJdbcTemplate(db).usingDbTime().withLockedByValue(who).build());
		int crash = Integer.parseInt(args[1]);
		db.queryForObject("SELECT 1", Integer.class);
		System.out.println("ready");
		for (int i = 2; i < args.length; i++) {
			long period = Long.parseLong(args[i]);
			String name = "job" + period;
			new Thread(() -> {
				try {
					while (true) {
						Thread.sleep(period - System.currentTimeMillis() % period);
						if (over) {
							return;
						}
						var config = new LockConfiguration(Instant.now(), name, AT_MOST, Duration.ofMillis(period * 9 / 10));
						var lock = provider.lock(config);
						if (lock.isEmpty()) {
							continue;
						}
						job(db, name, period, who);
						if (ThreadLocalRandom.current().nextInt(3) == 0) {
							lock = lock.get().extend(AT_MOST, Duration.ofMillis(period * 9 / 10));
						}
						if (crash == 0 || ThreadLocalRandom.current().nextInt(crash) > 0) {
							lock.get().unlock();
						}
					}
				} catch (Exception e) {
					System.out.println(e);
				}
			}).start();
		}
		while (System.in.read() >= 0) {
		}
		over = true;
	}

	static void job(JdbcTemplate db, String name, long period, String who) throws Exception {
		try {
			db.update("INSERT INTO busy VALUES (?)", name);
		} catch (DuplicateKeyException e) {
			System.out.println(name + " runs twice at the same time, once in " + who);
			return;
		}
		db.update("INSERT INTO runs SELECT ?, t DIV ?, ? FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS t) c WHERE t % ? < ?",
			name, period, who, period, period * 8 / 10);
		Thread.sleep(ThreadLocalRandom.current().nextLong(period / 2));
		db.update("DELETE FROM busy WHERE name = ?", name);
	}
}
