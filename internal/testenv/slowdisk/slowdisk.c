// slowdisk FILE COMMAND...: runs the command, and has each fsync and fdatasync of it and of its children take the nanoseconds that stand, as
// a 64-bit integer, in FILE, which may change at any time. Nothing is flushed, so the time is not that of a disk. The kernel stops the
// caller and tells a process beside it, which answers in the place of the kernel when the time is over: a library that is preloaded would
// miss programs in Go, which call the kernel themselves.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
	perror(what);
	_exit(125);
}

// watch makes the kernel tell of the flushes of this process, and of what it executes and forks, and returns where.
static int watch(void) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) // what the kernel asks for of those who are not root
		die("no_new_privs");
	int told = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	if (told < 0)
		die("seccomp");
	return told;
}

// A message with one file descriptor.
struct message {
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec data;
	struct msghdr head;
};

static void prepare(struct message *m) {
	m->byte = 0;
	m->data = (struct iovec){&m->byte, 1};
	m->head = (struct msghdr){.msg_iov = &m->data, .msg_iovlen = 1, .msg_control = m->control, .msg_controllen = sizeof m->control};
}

static void give(int to, int fd) {
	struct message m;
	prepare(&m);
	struct cmsghdr *c = CMSG_FIRSTHDR(&m.head);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
	*(int *)CMSG_DATA(c) = fd;
	if (sendmsg(to, &m.head, 0) != 1)
		die("sendmsg");
}

static int take(int from) {
	struct message m;
	prepare(&m);
	if (recvmsg(from, &m.head, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m.head))
		_exit(125); // the other side has said why
	return *(int *)CMSG_DATA(CMSG_FIRSTHDR(&m.head));
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// delay answers flushes in the order in which they came, until nobody is left who could flush.
static void delay(int told, volatile int64_t *late) {
	static struct { uint64_t id; int64_t due; } waiting[1 << 12]; // a ring: a process more than that would have to flush at once
	unsigned first = 0, end = 0, most = sizeof waiting / sizeof *waiting;
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	for (;;) {
		for (; first != end && waiting[first % most].due <= now(); first++) {
			struct seccomp_notif_resp done = {.id = waiting[first % most].id}; // no error: 0
			ioctl(told, SECCOMP_IOCTL_NOTIF_SEND, &done); // an error means that the caller has been killed
		}
		int64_t wait = first == end ? 0 : waiting[first % most].due - now();
		struct timespec left = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
		struct pollfd p = {told, end - first < most ? POLLIN : 0, 0};
		if (ppoll(&p, 1, first == end ? NULL : &left, NULL) <= 0)
			continue;
		if (p.revents & (POLLHUP | POLLERR))
			_exit(0);
		struct seccomp_notif call = {0};
		if (p.revents & POLLIN && !ioctl(told, SECCOMP_IOCTL_NOTIF_RECV, &call)) {
			waiting[end % most].id = call.id;
			waiting[end++ % most].due = now() + *late;
		}
	}
}

int main(int argc, char **argv) {
	if (argc < 3)
		return 125;
	int fd = open(argv[1], O_RDONLY | O_CLOEXEC), pair[2];
	if (fd < 0)
		die(argv[1]);
	volatile int64_t *late = mmap(NULL, sizeof *late, PROT_READ, MAP_SHARED, fd, 0);
	if (late == MAP_FAILED)
		die("mmap");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		die("socketpair");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		if (fork()) // the command has no child that it did not make
			_exit(0);
		close(pair[0]);
		delay(take(pair[1]), late);
	}
	waitpid(child, NULL, 0);
	close(pair[1]);
	int told = watch();
	give(pair[0], told);
	close(told);
	close(pair[0]);
	execvp(argv[2], argv + 2);
	die(argv[2]);
}
