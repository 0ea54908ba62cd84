#include "drain.h"
#include "base/clock.h"

#include <pthread.h>
#include <time.h>

bool drain_delay(int64_t delay_ms, const sigset_t *signals) {
  int64_t until_ns = clock_now_ns() + delay_ms * NS_PER_MS;
  for (int64_t left_ns; (left_ns = until_ns - clock_now_ns()) > 0;) {
    struct timespec left = {left_ns / NS_PER_S, left_ns % NS_PER_S};
    int number = sigtimedwait(signals, NULL, &left);
    if (drain_asked(number)) return false;
  }
  return true;
}

// While the main thread waits for the last calls: another signal cuts them off.
static void *watcher_main(void *arg) {
  struct drain *drain = arg;
  while (!atomic_load(&drain->done)) {
    int number = sigwaitinfo(drain->signals, NULL);
    if (!drain_asked(number)) continue;
    net_drain(drain->net, 0);
    exporter_abandon(drain->exporter);
  }
  return NULL;
}

static int64_t earlier(int64_t a_ns, int64_t b_ns) {
  return a_ns < b_ns ? a_ns : b_ns;
}

int drain_network(struct drain *drain) {
  pthread_t thread;
  int64_t until_ns = clock_now_ns() + drain->timeout_ms * NS_PER_MS;
  bool watching = pthread_create(&thread, NULL, watcher_main, drain) == 0;
  net_drain(drain->net, drain->timeout_ms);
  int cut_off = net_join(drain->net);
  exporter_flush(drain->exporter, earlier(until_ns, clock_now_ns() + drain->flush_ms * NS_PER_MS));
  if (watching) {
    atomic_store(&drain->done, true);
    pthread_kill(thread, SIGNAL_WAKE);
    pthread_join(thread, NULL);
  }
  return cut_off;
}
