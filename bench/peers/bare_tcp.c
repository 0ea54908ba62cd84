// The floor under an RPC server on this machine: messages of a fixed size over one TCP connection,
// received, copied once, sent back. No HTTP/2, no protobuf, no other thread.
//
//   bare_tcp serve PORT BYTES               127.0.0.1; PORT 0: a free one; prints it
//   bare_tcp load PORT BYTES FLYING CALLS [LOG]    prints calls/s; LOG: "0 <tab> 200 <tab> us" a
//   line
//
// Both sides move bytes in the pieces that the servers and h2load move them in: reads of 256 KiB
// and one writev a turn here, reads of 8 KiB and writes of up to 64 KiB there.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define READ_BYTES (256 * 1024)
#define LOAD_READ_BYTES (8 * 1024)
#define LOAD_WRITE_BYTES (64 * 1024)
#define MAX_FLYING 1024

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void *pages(size_t bytes) {
  void *memory = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
  if (!memory) die("memory");
  memset(memory, 1, bytes);
  return memory;
}

static void prepare(int fd) {
  int one = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 ||
      fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
    die("socket");
}

static struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int want(int poll, int fd, bool read, bool write, int before) {
  struct epoll_event event = {.events = (read ? EPOLLIN : 0) | (write ? EPOLLOUT : 0)};
  if ((int)event.events == before) return before;
  if (epoll_ctl(poll, before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
  return (int)event.events;
}

// ---- server ----

// Messages lie in a ring of slots: [sent, filled) bytes wait to go back, counted from the
// beginning.
struct echo {
  int fd;
  size_t bytes, slots;
  uint64_t filled, sent;
  uint8_t *ring, *buffer;
};

static void take(struct echo *echo, const uint8_t *data, size_t n) {
  size_t ring_bytes = echo->bytes * echo->slots;
  while (n > 0) {
    size_t at = echo->filled % ring_bytes, piece = ring_bytes - at;
    piece = piece < n ? piece : n;
    piece = piece < PAGE ? piece : PAGE; // `rep movs` of more may be tenfold slower, by alignment:
    __asm__("" : "+r"(piece));           // server/base/copy.h
    memcpy(echo->ring + at, data, piece);
    echo->filled += piece;
    data += piece;
    n -= piece;
  }
}

// All whole messages in one writev. False: the socket is full.
static bool give(struct echo *echo) {
  size_t ring_bytes = echo->bytes * echo->slots;
  uint64_t whole = echo->filled / echo->bytes * echo->bytes;
  while (echo->sent < whole) {
    size_t at = echo->sent % ring_bytes, n = whole - echo->sent, end = ring_bytes - at;
    struct iovec iov[2] = {{echo->ring + at, n < end ? n : end},
                           {echo->ring, n < end ? 0 : n - end}};
    ssize_t sent = writev(echo->fd, iov, n < end ? 1 : 2);
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent < 0) return true; // the next read sees the end
    echo->sent += (uint64_t)sent;
  }
  return true;
}

static void serve_one(struct echo *echo) {
  int poll = epoll_create1(0), events = want(poll, echo->fd, true, false, 0);
  echo->filled = echo->sent = 0;
  for (;;) {
    struct epoll_event event;
    if (epoll_wait(poll, &event, 1, -1) < 0) die("epoll_wait");
    if (event.events & ~(unsigned)EPOLLOUT) {
      ssize_t n = read(echo->fd, echo->buffer, READ_BYTES);
      if (n == 0 || (n < 0 && errno != EAGAIN)) break;
      if (n > 0) take(echo, echo->buffer, (size_t)n);
    }
    bool full = !give(echo);
    bool room = echo->filled - echo->sent + READ_BYTES <= echo->bytes * echo->slots;
    events = want(poll, echo->fd, room, full, events);
  }
  close(poll);
}

static void serve(int port, size_t bytes) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = loopback(port);
  socklen_t length = sizeof address;
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 ||
      listen(listener, 16) != 0 || getsockname(listener, (struct sockaddr *)&address, &length) != 0)
    die("listen");
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  struct echo echo = {.bytes = bytes, .slots = (16 << 20) / bytes, .buffer = pages(READ_BYTES)};
  echo.ring = pages(echo.bytes * echo.slots);
  for (;;) {
    if ((echo.fd = accept(listener, NULL, NULL)) < 0) die("accept");
    prepare(echo.fd);
    serve_one(&echo);
    close(echo.fd);
  }
}

// ---- load ----

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

struct load {
  int fd;
  size_t bytes, flying;
  uint64_t calls, sent, received; // bytes
  int64_t begun_ns[MAX_FLYING];
  uint64_t begun;
  const uint8_t *body;
  FILE *log;
};

// Sends while there is somebody to send for. False: the socket is full.
static bool push(struct load *load) {
  for (;;) {
    uint64_t done = load->received / load->bytes, most = done + load->flying;
    uint64_t until = (most < load->calls ? most : load->calls) * load->bytes;
    for (; load->begun * load->bytes < until; load->begun++)
      load->begun_ns[load->begun % MAX_FLYING] = now_ns();
    if (load->sent == until) return true;
    size_t at = load->sent % load->bytes, n = until - load->sent;
    n = n < LOAD_WRITE_BYTES ? n : LOAD_WRITE_BYTES;
    ssize_t sent = write(load->fd, load->body + at, n);
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent <= 0) die("write");
    load->sent += (uint64_t)sent;
  }
}

static void pull(struct load *load) {
  static uint8_t buffer[LOAD_READ_BYTES];
  for (;;) {
    ssize_t n = read(load->fd, buffer, sizeof buffer);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("read");
    uint64_t call = load->received / load->bytes;
    load->received += (uint64_t)n;
    for (int64_t at_ns = now_ns(); call < load->received / load->bytes; call++)
      if (load->log)
        fprintf(load->log, "0\t200\t%lld\n",
                (long long)(at_ns - load->begun_ns[call % MAX_FLYING]) / 1000);
  }
}

static void load(int port, size_t bytes, size_t flying, uint64_t calls, const char *log) {
  struct load load = {.bytes = bytes, .flying = flying, .calls = calls};
  struct sockaddr_in address = loopback(port);
  load.fd = socket(AF_INET, SOCK_STREAM, 0);
  if (load.fd < 0 || connect(load.fd, (struct sockaddr *)&address, sizeof address) != 0)
    die("connect");
  prepare(load.fd);
  load.body = pages(bytes + LOAD_WRITE_BYTES);
  if (log && !(load.log = fopen(log, "w"))) die(log);
  int poll = epoll_create1(0), events = 0;
  int64_t begun_ns = now_ns();
  while (load.received < calls * bytes) {
    events = want(poll, load.fd, true, !push(&load), events);
    struct epoll_event event;
    if (epoll_wait(poll, &event, 1, -1) < 0) die("epoll_wait");
    pull(&load);
  }
  printf("%.2f calls/s\n", (double)calls * 1e9 / (double)(now_ns() - begun_ns));
  if (load.log && fclose(load.log) != 0) die(log);
}

int main(int argc, char **argv) {
  size_t bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
  if (argc == 4 && strcmp(argv[1], "serve") == 0 && bytes > 0 && bytes <= 4 << 20)
    serve((int)strtol(argv[2], NULL, 10), bytes);
  size_t flying = argc > 5 ? strtoull(argv[4], NULL, 10) : 0;
  if (argc > 5 && strcmp(argv[1], "load") == 0 && bytes > 0 && flying > 0 && flying <= MAX_FLYING) {
    load((int)strtol(argv[2], NULL, 10), bytes, flying, strtoull(argv[5], NULL, 10), argv[6]);
    return 0;
  }
  fprintf(stderr, "bare_tcp serve PORT BYTES | load PORT BYTES FLYING CALLS [LOG]\n");
  return 2;
}
