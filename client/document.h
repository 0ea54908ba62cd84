// What commands have in common that ask the server for one document about its models: their options
// are read, the server is asked, and what it says goes to a file or to standard output.
#ifndef CLIENT_DOCUMENT_H
#define CLIENT_DOCUMENT_H

#include "client/connect.h"

// First in the command's own options.
struct document_options {
  struct connect_options connect;
  const char *model, *version, *format, *output;
  bool help;
};

struct document_command {
  const char *name, *usage;
  const struct option_row *rows;
  int n_rows;
  const char *const *formats; // the words that --format takes, the first one by default
  int n_formats;
  bool all_models; // where no model is named: of all; else one must be
  // Asks, and gives the document in that one of `formats`; free it with file_free.
  enum status (*ask)(struct net *net, const struct document_options *options, int format,
                     struct slice *document, struct error *err);
};

// The whole command; `options` are zeroed. Returns the exit code.
int document_run(const struct document_command *command, struct document_options *options, int argc,
                 char **argv);

#endif
