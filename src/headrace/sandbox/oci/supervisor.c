/* PID 1 of a sandbox: starts commands, reaps what they leave, and ends when its owner does.
 *
 * It serves one SOCK_SEQPACKET socket, descriptor 3. A request may carry descriptors. Commands
 * run in a file tree mounted at /box0 or /box1, in a session of their own, without any privilege; their
 * streams are the owner's pipes, so no byte of a command passes through here. When the socket
 * closes, this process ends, and the kernel ends every process of its namespace with it.
 *
 * The layout of messages is repeated in wire.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONTROL = 3, MAX_RUNNING = 512, MAX_FDS = 8, MAX_MESSAGE = 1 << 18, FILE_STAGE = 20 };
enum op { EXEC = 1, RESET = 2, PING = 3, LISTEN = 4, PREPARE = 5 };
enum mode { COMMAND = 0, WRITE_FILE = 1, READ_FILE = 2 };
enum kind { ENDED = 1, FAILED = 2, DONE = 3, SOCKET = 4 };

struct request {
  uint32_t op, tag, uid, gid, cpu_s, file_mb, open_files, argc, envc, mode, prepared, root;
  /* then: cwd, argv[argc], env[envc], each with its NUL */
};

struct reply {
  uint32_t kind, tag;
  int32_t value, extra;
  uint64_t user_us, system_us;
};

struct running {
  pid_t pid;
  uint32_t tag;
  int failure; /* read end of the pipe on which the child says why it could not start */
};

static struct running table[MAX_RUNNING];
static char message[MAX_MESSAGE];

/* A child that waits for its command in a control group already: to join one can take the
 * kernel ten milliseconds, which nobody should wait for. */
static struct {
  pid_t pid;
  int socket;
} spare = {0, -1};

static int send_with(int to, const void *data, size_t length, const int *fds, int count) {
  struct iovec piece = {(void *)data, length};
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
  } control = {0};
  struct msghdr out = {.msg_iov = &piece, .msg_iovlen = 1};
  size_t bytes = (size_t)count * sizeof(int);
  if (count) {
    out.msg_control = control.space;
    out.msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *header = CMSG_FIRSTHDR(&out);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(header), fds, bytes);
  }
  ssize_t sent;
  while ((sent = sendmsg(to, &out, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  return sent < 0 ? -1 : 0;
}

/* A message into `message`; its length, 0 at the end, -1 for none yet. */
static ssize_t receive_with(int from, int *fds, int *count) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
  } control;
  struct iovec piece = {message, sizeof message};
  struct msghdr in = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.space,
                      .msg_controllen = sizeof control.space};
  ssize_t length = recvmsg(from, &in, MSG_CMSG_CLOEXEC);
  *count = 0;
  if (length < 0) return errno == EINTR || errno == EAGAIN ? -1 : 0;
  for (struct cmsghdr *h = CMSG_FIRSTHDR(&in); h; h = CMSG_NXTHDR(&in, h))
    if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
      *count = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      memcpy(fds, CMSG_DATA(h), (size_t)*count * sizeof(int));
    }
  if (length && ((size_t)length < sizeof(struct request) ||
                 in.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
    _exit(2);
  return length;
}

static void answer(const struct reply *reply, int fd) {
  if (send_with(CONTROL, reply, sizeof *reply, &fd, fd >= 0)) _exit(1);
}

static void fail(const struct request *request, int error, int stage) {
  struct reply reply = {.kind = FAILED, .tag = request->tag, .value = error, .extra = stage};
  answer(&reply, -1);
}

/* --- starting a command ------------------------------------------------------------------ */

static int bound(int resource, uint64_t most) {
  struct rlimit limit = {most, most};
  return setrlimit(resource, &limit);
}

static void give_up(int failure, int stage) {
  int32_t why[2] = {errno, stage};
  ssize_t written = write(failure, why, sizeof why);
  _exit(written == sizeof why ? 127 : 126);
}

/* The strings after the request; 0 if they are as it says. */
static int parse(size_t length, char **cwd, char ***argv, char ***env) {
  const struct request *request = (const struct request *)message;
  char *at = message + sizeof *request, *end = message + length;
  size_t strings = 1 + (size_t)request->argc + request->envc;
  errno = EINVAL;
  if (!request->argc || strings > length || end[-1] != '\0') return -1;
  char **all = calloc(strings + 2, sizeof *all), **into = all;
  if (!all) return -1;
  for (size_t i = 0; i < strings; i++) {
    if (at >= end) return -1;
    *into++ = at;
    if (i == request->argc) into++; /* the NULL that ends argv */
    at += strlen(at) + 1;
  }
  *cwd = all[0];
  *argv = all + 1;
  *env = all + request->argc + 2;
  return 0;
}

static void join(const int *groups, int count, int failure) {
  for (int i = 0; i < count; i++)
    if (write(groups[i], "0", 1) != 1) give_up(failure, 1);
  int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score < 0 || write(score, "900", 3) != 3) give_up(failure, 2);
  close(score);
}

static void make_directories(char *path, int failure) {
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (mkdir(path, 0755) && errno != EEXIST) give_up(failure, FILE_STAGE);
    *slash = '/';
  }
}

static void copy(int from, int to, uint64_t most, int failure) {
  static char chunk[1 << 16];
  ssize_t got;
  while ((got = read(from, chunk, sizeof chunk)) > 0) {
    if (most < (uint64_t)got) {
      errno = EFBIG;
      give_up(failure, FILE_STAGE);
    }
    most -= (uint64_t)got;
    for (ssize_t done = 0, put; done < got; done += put)
      if ((put = write(to, chunk + done, (size_t)(got - done))) < 0)
        give_up(failure, FILE_STAGE);
  }
  if (got < 0) give_up(failure, FILE_STAGE);
}

/* A link in the file's place is replaced, not followed. */
static void write_file(char *path, int failure) {
  char draft[4096];
  make_directories(path, failure);
  if (snprintf(draft, sizeof draft, "%s.%d~", path, (int)getpid()) >= (int)sizeof draft) {
    errno = ENAMETOOLONG;
    give_up(failure, FILE_STAGE);
  }
  int out = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (out < 0) give_up(failure, FILE_STAGE);
  copy(0, out, UINT64_MAX, failure);
  if (close(out) || rename(draft, path)) give_up(failure, FILE_STAGE);
  _exit(0);
}

static void read_file(const char *path, uint64_t most, int failure) {
  struct stat about;
  int in = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (in < 0 || fstat(in, &about)) give_up(failure, FILE_STAGE);
  if (!S_ISREG(about.st_mode)) {
    errno = EINVAL;
    give_up(failure, FILE_STAGE);
  }
  copy(in, 1, most, failure);
  _exit(0);
}

/* In the child: `message` holds the request. */
static void become_the_command(size_t length, const int *fds, int failure) {
  const struct request *request = (const struct request *)message;
  if (dup2(fds[0], 0) < 0 || dup2(fds[1], 1) < 0 || dup2(fds[2], 2) < 0) give_up(failure, 3);
  if (failure != CONTROL && dup3(failure, CONTROL, O_CLOEXEC) < 0) _exit(126);
  failure = CONTROL;
  if (syscall(SYS_close_range, 4u, ~0u, 0u)) give_up(failure, 4);
  char **argv, **env, *cwd;
  if (parse(length, &cwd, &argv, &env)) give_up(failure, 0);
  if (setsid() < 0) give_up(failure, 5);
  if (chroot(request->root ? "/box1" : "/box0") || chdir("/")) give_up(failure, 6);
  if (bound(RLIMIT_CORE, 0) || bound(RLIMIT_NOFILE, request->open_files)) give_up(failure, 7);
  if (request->cpu_s && bound(RLIMIT_CPU, request->cpu_s)) give_up(failure, 7);
  uint64_t file_bytes = (uint64_t)request->file_mb << 20;
  if (request->mode == COMMAND && file_bytes && bound(RLIMIT_FSIZE, file_bytes))
    give_up(failure, 7);
  if (setgroups(0, NULL) || setresgid(request->gid, request->gid, request->gid) ||
      setresuid(request->uid, request->uid, request->uid))
    give_up(failure, 8);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) give_up(failure, 9);
  umask(022);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (request->mode == WRITE_FILE) write_file(argv[0], failure);
  if (request->mode == READ_FILE) read_file(argv[0], file_bytes, failure);
  if (chdir(cwd)) give_up(failure, 10);
  environ = env;
  execvp(argv[0], argv);
  give_up(failure, 11);
}

static struct running *free_slot(void) {
  for (int i = 0; i < MAX_RUNNING; i++)
    if (!table[i].pid) return &table[i];
  return NULL;
}

static void prepare(const int *groups, int count) {
  int ends[2];
  if (spare.pid) return;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return;
  pid_t pid = fork();
  if (pid == 0) {
    int fds[MAX_FDS], number;
    close(CONTROL);
    close(ends[0]);
    join(groups, count, -1);
    ssize_t length = receive_with(ends[1], fds, &number);
    if (length <= 0 || number != 4) _exit(0);
    become_the_command((size_t)length, fds, fds[3]);
  }
  close(ends[1]);
  if (pid > 0) {
    spare.pid = pid;
    spare.socket = ends[0];
  } else {
    close(ends[0]);
  }
}

static void start(const struct request *request, size_t length, const int *fds, int count) {
  struct running *slot = free_slot();
  int failure[2];
  if (count < 3 || !request->uid) return fail(request, EINVAL, 0);
  if (!slot || pipe2(failure, O_CLOEXEC | O_NONBLOCK))
    return fail(request, slot ? errno : EAGAIN, 0);
  pid_t pid = 0;
  if (request->prepared && spare.pid) {
    int passed[4] = {fds[0], fds[1], fds[2], failure[1]};
    if (!send_with(spare.socket, message, length, passed, 4)) {
      pid = spare.pid;
      spare.pid = 0;
      close(spare.socket);
    }
  }
  if (!pid && !(pid = fork())) {
    join(fds + 3, count - 3, failure[1]);
    become_the_command(length, fds, failure[1]);
  }
  int error = errno;
  close(failure[1]);
  if (pid < 0) {
    close(failure[0]);
    return fail(request, error, 12);
  }
  *slot = (struct running){pid, request->tag, failure[0]};
}

/* --- ending ------------------------------------------------------------------------------ */

static uint64_t microseconds(struct timeval time) {
  return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static void note_end(pid_t pid, int status, const struct rusage *usage) {
  if (pid == spare.pid) {
    spare.pid = 0;
    close(spare.socket);
    return;
  }
  for (int i = 0; i < MAX_RUNNING; i++) {
    if (table[i].pid != pid) continue;
    int32_t why[2];
    struct reply reply = {.kind = ENDED, .tag = table[i].tag, .value = status,
                          .user_us = microseconds(usage->ru_utime),
                          .system_us = microseconds(usage->ru_stime)};
    if (read(table[i].failure, why, sizeof why) == sizeof why) {
      reply.kind = FAILED;
      reply.value = why[0];
      reply.extra = why[1];
    }
    close(table[i].failure);
    table[i].pid = 0;
    answer(&reply, -1);
    return;
  }
}

static int reap(int flags) {
  int status;
  struct rusage usage;
  pid_t pid = wait4(-1, &status, flags, &usage);
  if (pid > 0) note_end(pid, status, &usage);
  return pid < 0 ? -1 : pid > 0;
}

static int objects_left(void) {
  struct shm_info memory;
  struct msginfo queues;
  struct seminfo semaphores;
  union {
    int value;
    struct seminfo *info;
  } argument = {.info = &semaphores};
  if (shmctl(0, SHM_INFO, (struct shmid_ds *)&memory) < 0 ||
      msgctl(0, MSG_INFO, (struct msqid_ds *)&queues) < 0 ||
      semctl(0, 0, SEM_INFO, argument) < 0)
    return 1;
  return memory.used_ids || queues.msgpool || semaphores.semusz;
}

static void reset(const struct request *request) {
  for (;;) {
    kill(-1, SIGKILL);
    int found = reap(WNOHANG);
    if (found < 0) break;
    if (!found) usleep(100);
  }
  struct reply reply = {.kind = DONE, .tag = request->tag, .value = objects_left()};
  answer(&reply, -1);
}

/* --- the rest ---------------------------------------------------------------------------- */

static void listen_inside(const struct request *request) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)request->argc),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64))
    return fail(request, errno, 13);
  struct reply reply = {.kind = SOCKET, .tag = request->tag};
  answer(&reply, fd);
  close(fd);
}

static void serve_one(void) {
  int fds[MAX_FDS], count;
  ssize_t length = receive_with(CONTROL, fds, &count);
  if (length < 0) return;
  if (!length) _exit(0);
  const struct request *request = (const struct request *)message;
  struct reply done = {.kind = DONE, .tag = request->tag};
  switch (request->op) {
    case EXEC: start(request, (size_t)length, fds, count); break;
    case RESET: reset(request); break;
    case PING: answer(&done, -1); break;
    case LISTEN: listen_inside(request); break;
    case PREPARE: prepare(fds, count); break;
    default: _exit(2);
  }
  for (int i = 0; i < count; i++) close(fds[i]);
}

/* Host sockets that have a name but no file are out of reach, also where the network is the
 * host's (Landlock, since Linux 6.12; 1 is LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET). */
static int leave_abstract_sockets(void) {
  struct { uint64_t files, network, scope; } rules = {.scope = 1};
  long fd = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0u);
  if (fd < 0) return 0;
  long failed = syscall(SYS_landlock_restrict_self, (int)fd, 0u);
  close((int)fd);
  return failed ? -1 : 0;
}

int main(void) {
  if (fcntl(CONTROL, F_SETFD, FD_CLOEXEC)) return 3;
  if (leave_abstract_sockets()) return 3;
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  if (sigprocmask(SIG_BLOCK, &children, NULL)) return 3;
  int ended = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  if (ended < 0) return 3;
  struct pollfd watched[2] = {{CONTROL, POLLIN, 0}, {ended, POLLIN, 0}};
  for (;;) {
    if (poll(watched, 2, -1) < 0 && errno != EINTR) return 3;
    if (watched[1].revents) {
      struct signalfd_siginfo ignored[16];
      while (read(ended, ignored, sizeof ignored) > 0) {
      }
      while (reap(WNOHANG) > 0) {
      }
    }
    if (watched[0].revents) serve_one();
  }
}
