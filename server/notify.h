// What a supervisor that speaks systemd's notify protocol is told: one datagram a state, to the
// socket of NOTIFY_SOCKET. Where there is none, nothing happens. No library is needed for it.
#ifndef NOTIFY_H
#define NOTIFY_H

#include <stdint.h>

void notify_open(void); // before any thread
void notify_ready(int n_models);
void notify_reloading(void); // notify_ready follows
void notify_stopping(void);
void notify_alive(void);
// How often the supervisor wants to hear notify_alive: half of WATCHDOG_USEC. 0: never.
int64_t notify_alive_every_ns(void);

#endif
