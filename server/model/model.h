// A loaded model: signature, graph, weights, one plan per fusion mode, bound to the devices.
//
// Built by the thread that loads models, then read-only. Requests hold a count: a model that was
// replaced in the registry lives until its last one is answered.
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "backend/backend.h"
#include "base/share.h"
#include "base/slab.h"
#include "conf/server_conf.h"
#include "model/service.h"
#include "obs/metrics.h"
#include "obs/shadow.h"
#include <stdatomic.h>

// Signature dimensions as the wire sees them: a positive number, or one of these.
#define DIM_BATCH (-1)
#define DIM_SEQ (-2)

enum input_role {
  ROLE_DATA,    // feeds the graph
  ROLE_MASK,    // attention_mask [batch, seq]: 1 keeps a position, 0 drops it; only the geometry
  ROLE_LENGTHS, // [batch]: the first `lengths[b]` positions are kept
};

struct signature_tensor {
  char name[LIMIT_NAME_BYTES];
  size_t name_bytes;
  enum dtype dtype; // on the wire (FP32, FP16, BF16, INT64, INT32)
  int32_t rank;
  int64_t dims[LIMIT_TENSOR_RANK]; // DIM_BATCH, DIM_SEQ or a number; dims[0] is DIM_BATCH
  int64_t row_elements; // product of the numbers: elements of one row of the packed matrix
  bool per_token;       // has DIM_SEQ: rows are tokens and are packed; else rows are sequences
  enum input_role role;
  bool optional; // may be left out: data inputs then read as zeros, mask as all ones
  // Data inputs that feed an embedding: ids must be in [0, index_limit). 0: any value will do.
  int64_t index_limit;
};

// What the outputs of a plan need, worked out once from its steps (sched/needs).
struct model_needs {
  uint32_t inputs[LIMIT_MODEL_OUTPUTS]; // bit i: a step that output o needs reads signature input i
  uint8_t steps;                        // bit o: output o needs at least one step
};

struct audit_target;

// Shadows (sched/shadow): of a share of the answered requests, the other plan runs behind.
struct model_shadow {
  double share; // 0: none
  double alarm; // relative L2 difference above which it is told
  int32_t max_rows, slots;
  uint64_t seed;
  struct shadow_metrics *metrics; // NULL: share is 0
  struct shadow_output_metrics *outputs[LIMIT_MODEL_OUTPUTS];
  struct shadow *on[LIMIT_DEVICES]; // set before the model serves
};

struct model {
  char name[LIMIT_NAME_BYTES];
  char version[32]; // "1" unless the file says otherwise
  char path[4096];  // of the model file
  struct signature_tensor inputs[LIMIT_MODEL_INPUTS], outputs[LIMIT_MODEL_OUTPUTS];
  int32_t n_inputs, n_outputs;
  bool has_sequences;
  int32_t max_seqlen;       // 1 when !has_sequences
  int32_t max_request_rows; // most tokens of one request = batch.max_tokens
  enum dtype compute;       // fp32, bf16, fp16
  // Which plans are bound, and run: on -> {on}, off -> {off}, auto -> {auto_is}, ab -> {on, off,
  // auto_is}. All plans[] are built, so the traffic and the costs of all are known.
  bool fusion_available[FUSION_MODES];
  enum fusion_mode fusion_default; // of requests that name none; never FUSION_AUTO
  char fusion_word[8];             // as its file has it: on, off, ab or auto
  // Whose plan FUSION_AUTO's comes out the same as; else FUSION_AUTO. Requests of that mode run as
  // this one, in batches with its own.
  enum fusion_mode auto_is;
  struct model_shadow shadow;
  struct share unfused;  // of requests that name none: those that run unfused (key `ab`)
  int32_t fusion_tokens; // of the batch that FUSION_AUTO decides for; 0: the largest
  struct graph graph;
  struct weight_table weights;
  void *weights_owner; // model/weights
  struct plan *plans[FUSION_MODES];
  struct bound_plan *bound[LIMIT_DEVICES][FUSION_MODES];
  const struct backend_ops *backend; // of all its devices
  struct device **devices;           // [n_devices]; not owned
  int n_devices;
  struct batch_limits {
    int32_t max_tokens, max_requests;
    int64_t max_delay_ns;
    int32_t queue_requests;
  } batch;
  struct model_metrics *metrics[FUSION_MODES]; // obs/metrics
  // What it holds: on each device, and of the host what devices read in place.
  struct model_memory {
    int64_t weights, arena;
    struct memory_metrics *metrics; // where that is added; NULL: not yet
  } memory[LIMIT_DEVICES], host_memory;
  struct model_needs needs[FUSION_MODES]; // filled by sched/needs before the model is served
  // Blocks of audit/target, likewise; NULL without an audit. Freed with the model.
  struct audit_target *audit[LIMIT_DEVICES][FUSION_MODES];
  struct service service[LIMIT_DEVICES][FUSION_MODES]; // what its batches take, by device
  _Atomic int refs;
  struct graveyard *graveyard; // where its last model_put leaves it; NULL: it is freed there
  struct model *next_dead;
};

// Models that nobody holds any more, until the thread that loads frees them: a device may have to
// be asked, and a loop has no time for it. Any thread puts, one takes.
struct graveyard {
  struct model *_Atomic first;
  void (*on_arrival)(void *arg); // may be NULL
  void *arg;
};
struct model *graveyard_take(struct graveyard *graveyard); // all of them, linked by next_dead
void model_free(struct model *model);                      // of one that graveyard_take gave

// Parse and check a model file into `out`: graph, signature, weights, plans for all modes; nothing
// bound to a device yet. All errors (not only the first) go to `report`, which may be called many
// times. INVALID_ARGUMENT or NOT_FOUND.
typedef void (*error_report)(const struct error *err, void *arg);
MUST_USE enum status model_parse(const char *path, const struct server_conf *conf,
                                 const struct plan_caps *caps, error_report report, void *arg,
                                 struct model **out);
// Bind its plans to every device. The ledger and the cause are in `err` when it does not fit.
MUST_USE enum status model_bind(struct model *model, const struct backend_ops *backend,
                                struct device **devices, int n_devices, struct error *err);
void model_get(struct model *model);
void model_put(struct model *model);

// ---- registry: the models that are known, and which of them serve -----------------------------
//
// One thread changes it (the control thread, later the one that loads); loops read it without a
// lock. Every change publishes a new table; the old one, and a model that it alone held, wait until
// registry_reclaim, which is called when no reader can still be looking at them.

enum model_state { MODEL_READY, MODEL_LOADING, MODEL_UNLOADING, MODEL_UNAVAILABLE };
const char *model_state_name(enum model_state state); // "READY" and so on

struct registry_entry {
  char name[LIMIT_NAME_BYTES], version[32];
  enum model_state state;
  char reason[512];    // why it is not READY, or why its last reload changed nothing; may be empty
  struct model *model; // counted; NULL: it does not serve
};

struct registry_table {
  int n;
  struct registry_entry entries[];
};

struct registry;
MUST_USE enum status registry_open(struct registry **out);
void registry_close(struct registry *registry); // no reader is left
// ---- readers ----
// The table as it is now; valid until the reader lets registry_reclaim happen.
const struct registry_table *registry_table(const struct registry *registry);
// The model that serves under that name; NULL: none. An empty `version` means the one of that name
// that was added last. Borrowed as long as the table.
struct model *registry_find(const struct registry *registry, struct slice name,
                            struct slice version);
// The name of a model that serves and that `name` most likely meant, big letters or small; NULL:
// none is near. For texts of errors: it looks at all names, in time bounded by their number and
// lengths.
const char *registry_nearest(const struct registry *registry, struct slice name);
int registry_count(const struct registry *registry);                   // entries
struct model *registry_at(const struct registry *registry, int index); // may be NULL

// ---- the one writer. RESOURCE_EXHAUSTED: no memory, nothing changed ----
// A new entry, READY, with `model`, whose count it takes. ALREADY_EXISTS: a model of that name and
// version is there.
MUST_USE enum status registry_add(struct registry *registry, struct model *model,
                                  struct error *err);
// The entry at `index` serves `model` from now on (NULL: nothing), under its name and version, in
// `state`. Takes the count of `model` unless that is what it serves already.
MUST_USE enum status registry_set(struct registry *registry, int index, struct model *model,
                                  enum model_state state, const char *reason, struct error *err);
void registry_reclaim(struct registry *registry); // frees what readers no longer see

#endif
