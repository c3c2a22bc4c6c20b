// Shifts the wall clock of the process into which it is preloaded. The file named by DSYNC_TEST_CLOCK contains the shift in nanoseconds,
// as a 64-bit integer, and may change at any time. Clocks that only run forward are not changed. A wait for a condition until a time on the
// wall clock begins with the shifted clock, and lasts as long as it would without a shift.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
	const char *path = getenv("DSYNC_TEST_CLOCK");
	if (!path)
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	void *at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (at != MAP_FAILED)
		offset = at;
}

static int64_t wall(void) {
	struct timespec t;
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + (offset ? *offset : 0);
}

int clock_gettime(clockid_t id, struct timespec *t) {
	if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
		return syscall(SYS_clock_gettime, id, t);
	int64_t now = wall();
	t->tv_sec = now / 1000000000;
	t->tv_nsec = now % 1000000000;
	return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	(void)zone;
	int64_t now = wall();
	t->tv_sec = now / 1000000000;
	t->tv_usec = now % 1000000000 / 1000;
	return 0;
}

time_t time(time_t *t) {
	time_t now = wall() / 1000000000;
	if (t)
		*t = now;
	return now;
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict until) {
	if (until->tv_sec < 1000000000) // not a time on the wall clock
		return pthread_cond_clockwait(c, m, CLOCK_MONOTONIC, until);
	int64_t at = (int64_t)until->tv_sec * 1000000000 + until->tv_nsec - (offset ? *offset : 0);
	struct timespec t = {at / 1000000000, at % 1000000000};
	return pthread_cond_clockwait(c, m, CLOCK_REALTIME, &t);
}
