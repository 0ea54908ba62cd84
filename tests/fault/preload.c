// Loaded into the real daemon by LD_PRELOAD (tests/e2e/test_failing_system.py): allocations and
// system calls that fail on demand, of every library in the process. The test writes its wishes
// into a file that both map.
#include "fault/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static struct fault_wishes none, *wishes = &none;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FUSEWIRE_FAULTS");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *map = mmap(NULL, sizeof *wishes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (map != MAP_FAILED) wishes = map;
}

static void *real(const char *name) {
  return dlsym(RTLD_NEXT, name);
}

// ---- allocations: the nth from now on, once ----

static bool allocation_fails(void) {
  if (atomic_load_explicit(&wishes->allocations_left, memory_order_relaxed) <= 0) return false;
  if (atomic_fetch_sub(&wishes->allocations_left, 1) != 1) return false;
  atomic_fetch_add(&wishes->n_failed, 1);
  errno = ENOMEM;
  return true;
}

// glibc's own names, since dlsym itself may allocate.
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

FAULT_PUBLIC void *malloc(size_t bytes) {
  return allocation_fails() ? NULL : __libc_malloc(bytes);
}
FAULT_PUBLIC void *calloc(size_t n, size_t bytes) {
  return allocation_fails() ? NULL : __libc_calloc(n, bytes);
}
FAULT_PUBLIC void *realloc(void *memory, size_t bytes) {
  return allocation_fails() ? NULL : __libc_realloc(memory, bytes);
}
FAULT_PUBLIC void *aligned_alloc(size_t align, size_t bytes) {
  return allocation_fails() ? NULL : __libc_memalign(align, bytes);
}

// ---- system calls: each with its own chance ----

// A sequence of its own for each thread; which calls fail need not be the same in every run.
static bool chance(enum fault_call call) {
  static _Thread_local uint64_t state;
  uint32_t wanted = atomic_load_explicit(&wishes->chance[call], memory_order_relaxed);
  if (wanted == 0) return false;
  if (state == 0) state = (uint64_t)(uintptr_t)&state | 1;
  state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
  if ((uint32_t)(state >> 33) % 1000 >= wanted) return false;
  atomic_fetch_add_explicit(&wishes->n_calls[call], 1, memory_order_relaxed);
  return true;
}

static int failed(int code) {
  errno = code;
  return -1;
}

// The first byte to half of what there is.
static int shorten(const struct iovec *iov, int n, struct iovec *out) {
  out[0] = iov[0];
  for (int i = 0; i < n; i++)
    if (iov[i].iov_len > 0) {
      out[0] = iov[i];
      out[0].iov_len = (iov[i].iov_len + 1) / 2;
      break;
    }
  return 1;
}

FAULT_PUBLIC ssize_t writev(int fd, const struct iovec *iov, int n) {
  ssize_t (*next)(int, const struct iovec *, int) = real("writev");
  struct iovec one[1];
  if (chance(FAULT_WRITE_AGAIN)) return failed(EAGAIN);
  if (chance(FAULT_WRITE_NO_BUFFERS)) return failed(ENOBUFS);
  return n > 0 && chance(FAULT_WRITE_SHORT) ? next(fd, one, shorten(iov, n, one))
                                            : next(fd, iov, n);
}

FAULT_PUBLIC ssize_t write(int fd, const void *data, size_t bytes) {
  ssize_t (*next)(int, const void *, size_t) = real("write");
  if (fd > STDERR_FILENO && bytes > 8) { // not wake-ups, of 8 bytes
    if (chance(FAULT_WRITE_AGAIN)) return failed(EAGAIN);
    if (chance(FAULT_WRITE_NO_BUFFERS)) return failed(ENOBUFS);
    if (chance(FAULT_WRITE_SHORT)) bytes = (bytes + 1) / 2;
  }
  return next(fd, data, bytes);
}

FAULT_PUBLIC ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  ssize_t (*next)(int, const struct msghdr *, int) = real("sendmsg");
  if (chance(FAULT_WRITE_AGAIN)) return failed(EAGAIN);
  if (chance(FAULT_WRITE_NO_BUFFERS)) return failed(ENOBUFS);
  if (message->msg_iovlen == 0 || !chance(FAULT_WRITE_SHORT)) return next(fd, message, flags);
  struct iovec one[1];
  struct msghdr shorter = *message;
  shorter.msg_iov = one;
  shorter.msg_iovlen = (size_t)shorten(message->msg_iov, (int)message->msg_iovlen, one);
  return next(fd, &shorter, flags);
}

FAULT_PUBLIC ssize_t read(int fd, void *out, size_t bytes) {
  ssize_t (*next)(int, void *, size_t) = real("read");
  if (bytes >= 4096 && chance(FAULT_READ_AGAIN)) return failed(EAGAIN);
  if (bytes >= 4096 && chance(FAULT_READ_INTERRUPTED)) return failed(EINTR);
  if (bytes >= 4096 && chance(FAULT_READ_SHORT)) bytes = 1 + bytes % 7;
  return next(fd, out, bytes);
}

FAULT_PUBLIC int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) {
  int (*next)(int, struct sockaddr *, socklen_t *, int) = real("accept4");
  if (chance(FAULT_ACCEPT_NO_FILES)) return failed(EMFILE);
  if (chance(FAULT_ACCEPT_ABORTED)) return failed(ECONNABORTED);
  if (chance(FAULT_ACCEPT_NO_MEMORY)) return failed(ENOMEM);
  return next(fd, address, bytes, flags);
}

FAULT_PUBLIC void *mmap(void *address, size_t bytes, int protection, int flags, int fd,
                        off_t offset) {
  void *(*next)(void *, size_t, int, int, int, off_t) = real("mmap");
  if (chance(FAULT_MAP_NO_MEMORY)) return failed(ENOMEM), MAP_FAILED;
  return next(address, bytes, protection, flags, fd, offset);
}
