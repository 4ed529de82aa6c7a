/* PID 1 of a sandbox: starts commands, reaps what they leave, and ends when its owner does.
 *
 * It serves one SOCK_SEQPACKET socket, descriptor 3. A request may carry descriptors. Commands
 * run in the file tree mounted at /box, in a session of their own, without any privilege; their
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

enum { CONTROL = 3, MAX_RUNNING = 512, MAX_FDS = 8, MAX_MESSAGE = 1 << 18 };
enum op { EXEC = 1, RESET = 2, PING = 3, LISTEN = 4 };
enum kind { ENDED = 1, FAILED = 2, DONE = 3, SOCKET = 4 };

struct request {
  uint32_t op, tag, uid, gid, cpu_s, file_mb, open_files, argc, envc;
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

static void answer(const struct reply *reply, int fd) {
  struct iovec piece = {(void *)reply, sizeof *reply};
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct msghdr out = {.msg_iov = &piece, .msg_iovlen = 1};
  if (fd >= 0) {
    out.msg_control = control.space;
    out.msg_controllen = sizeof control.space;
    struct cmsghdr *header = CMSG_FIRSTHDR(&out);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  while (sendmsg(CONTROL, &out, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) _exit(1);
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

static void become_the_command(const struct request *request, const char *cwd, char **argv,
                               char **env, const int *fds, int count, int failure) {
  for (int i = 3; i < count; i++)
    if (write(fds[i], "0", 1) != 1) give_up(failure, 1);
  int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score < 0 || write(score, "900", 3) != 3) give_up(failure, 2);
  if (dup2(fds[0], 0) < 0 || dup2(fds[1], 1) < 0 || dup2(fds[2], 2) < 0) give_up(failure, 3);
  if (dup3(failure, CONTROL, O_CLOEXEC) < 0) _exit(126);
  failure = CONTROL;
  if (syscall(SYS_close_range, 4u, ~0u, 0u)) give_up(failure, 4);
  if (setsid() < 0) give_up(failure, 5);
  if (chroot("/box") || chdir("/")) give_up(failure, 6);
  if (bound(RLIMIT_CORE, 0) || bound(RLIMIT_NOFILE, request->open_files)) give_up(failure, 7);
  if (request->cpu_s && bound(RLIMIT_CPU, request->cpu_s)) give_up(failure, 7);
  if (request->file_mb && bound(RLIMIT_FSIZE, (uint64_t)request->file_mb << 20))
    give_up(failure, 7);
  if (setgroups(0, NULL) || setresgid(request->gid, request->gid, request->gid) ||
      setresuid(request->uid, request->uid, request->uid))
    give_up(failure, 8);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) give_up(failure, 9);
  if (chdir(cwd)) give_up(failure, 10);
  umask(022);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  environ = env;
  execvp(argv[0], argv);
  give_up(failure, 11);
}

static struct running *free_slot(void) {
  for (int i = 0; i < MAX_RUNNING; i++)
    if (!table[i].pid) return &table[i];
  return NULL;
}

static void start(const struct request *request, size_t length, const int *fds, int count) {
  const char *at = (const char *)(request + 1), *end = message + length;
  size_t strings = 1 + (size_t)request->argc + request->envc;
  if (count < 3 || !request->argc || !request->uid || strings > length ||
      end[-1] != '\0')
    return fail(request, EINVAL, 0);
  char **all = calloc(strings + 2, sizeof *all);
  if (!all) return fail(request, ENOMEM, 0);
  char **into = all;
  for (size_t i = 0; i < strings; i++) {
    if (at >= end) {
      free(all);
      return fail(request, EINVAL, 0);
    }
    *into++ = (char *)at;
    if (i == request->argc) into++; /* the NULL that ends argv */
    at += strlen(at) + 1;
  }
  struct running *slot = free_slot();
  int failure[2];
  if (!slot || pipe2(failure, O_CLOEXEC | O_NONBLOCK)) {
    free(all);
    return fail(request, slot ? errno : EAGAIN, 0);
  }
  pid_t pid = fork();
  if (pid == 0)
    become_the_command(request, all[0], all + 1, all + request->argc + 2, fds, count,
                       failure[1]);
  int error = errno;
  close(failure[1]);
  free(all);
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
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
  } control;
  struct iovec piece = {message, sizeof message};
  struct msghdr in = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.space,
                      .msg_controllen = sizeof control.space};
  ssize_t length = recvmsg(CONTROL, &in, MSG_CMSG_CLOEXEC);
  if (length < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (length <= 0) _exit(0);
  int fds[MAX_FDS], count = 0;
  for (struct cmsghdr *h = CMSG_FIRSTHDR(&in); h; h = CMSG_NXTHDR(&in, h))
    if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
      count = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      memcpy(fds, CMSG_DATA(h), (size_t)count * sizeof(int));
    }
  const struct request *request = (const struct request *)message;
  if ((size_t)length < sizeof *request || in.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) _exit(2);
  struct reply done = {.kind = DONE, .tag = request->tag};
  switch (request->op) {
    case EXEC: start(request, (size_t)length, fds, count); break;
    case RESET: reset(request); break;
    case PING: answer(&done, -1); break;
    case LISTEN: listen_inside(request); break;
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
  if (leave_abstract_sockets()) return 3;
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  if (sigprocmask(SIG_BLOCK, &children, NULL)) return 3;
  int ended = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  if (ended < 0 || fcntl(CONTROL, F_SETFD, FD_CLOEXEC)) return 3;
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
