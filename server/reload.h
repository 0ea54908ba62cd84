// Models that come, are replaced and go while others serve. The thread that loads, after the first
// models serve; it sleeps until it is asked for something.
//
// A new version is parsed, bound and warmed beside the old one, which serves on; then the
// registry's entry points to the new one, and the old one is freed after its last request. Whatever
// fails before that changes nothing: the index and the log say why.
#ifndef RELOAD_H
#define RELOAD_H

#include "api/api.h"
#include "parts.h"

struct model_list { // the files that the settings name
  char paths[LIMIT_MODELS][1024];
  int n;
};

struct reloader {
  struct parts *parts;
  struct api *api;
  const struct args *args; // where the settings come from
  struct executor *const *executors;
  int n_executors;
  struct wake wake;
  _Atomic bool all;  // read the list of models again, and every model of it (SIGHUP)
  _Atomic bool trim; // somebody has freed a lot
  _Atomic bool stop;
  char paths[LIMIT_MODELS][4096]; // of the registry's entries
  struct model_list listed;       // as it was read last
};

void reloader_init(struct reloader *reloader); // parts and api are set; before anybody may ask
void reloader_ask(struct reloader *reloader);  // SIGHUP's work; any thread
void reloader_trim(struct reloader *reloader); // malloc's free memory goes back; any thread
void reloader_stop(struct reloader *reloader); // any thread; the current step is still finished
void reloader_run(struct reloader *reloader);  // until reloader_stop

#endif
