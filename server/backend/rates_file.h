// What was measured of a device, as text: its constants and its shapes. One file a device, by its
// id, in the cache folder. Pure but for the two functions that name a path; the control thread.
#ifndef BACKEND_RATES_FILE_H
#define BACKEND_RATES_FILE_H

#include "base/status.h"
#include "graph/rates.h"
#include "graph/shapes.h"

#include <stdint.h>

struct device_facts {
  struct device_rates rates;
  bool measured;             // false: rates are what they were before the file was looked for
  struct shape_table shapes; // room for SHAPES_MAX
};

// Room for the shapes; RESOURCE_EXHAUSTED.
MUST_USE enum status device_facts_init(struct device_facts *facts,
                                       const struct device_rates *defaults);
void device_facts_deinit(struct device_facts *facts);

// As text; the bytes needed, as snprintf says.
size_t device_facts_print(const struct device_facts *facts, char *out, size_t out_bytes);
// Takes what `text` says over what `facts` holds. INVALID_ARGUMENT names the line; `facts` is then
// unchanged.
MUST_USE enum status device_facts_parse(const char *text, size_t bytes, struct device_facts *facts,
                                        struct error *err);

// "<folder>/<id>.rates", with everything but letters, digits, ".", "_" and "-" of the id made "_".
// False: it does not fit.
bool device_facts_path(const char *folder, const char *id, char *out, size_t out_bytes);
// NOT_FOUND where there is none. A file that does not parse is an error and changes nothing.
MUST_USE enum status device_facts_read(const char *path, struct device_facts *facts,
                                       struct error *err);
// As a whole: a new file under another name, then renamed.
MUST_USE enum status device_facts_write(const char *path, const struct device_facts *facts,
                                        struct error *err);

#endif
