// Shadows: of a share of the answered requests, the model's other plan runs behind on the same
// input, and the two answers are compared (key `ab.shadow` of a model file).
//
// A request that is sampled is copied, inputs and answers, into a slot before its batch is
// answered; from then on nothing of it is needed. Its shadow runs when the device has nothing else
// to do (sched/behind), or not at all. Slots are made when the model is loaded; nothing here
// allocates, locks or waits. Executor thread, but for open and close.
#ifndef SCHED_SHADOW_H
#define SCHED_SHADOW_H

#include "sched/compare.h"
#include "sched/queue.h"

// A copy that waited for so long is dropped: it holds its model, which may have been replaced.
#define SHADOW_PATIENCE_NS NS_PER_S
// So many elements are compared at a time (some 20 us): new requests are looked at in between.
#define SHADOW_SLICE 16384

struct shadow;
struct shadow_slot {
  struct shadow_slot *next; // of free ones, or of those that wait
  struct shadow *shadow;
  struct request request; // the copy, of the other plan's mode; outputs go into the slot
  const uint8_t *answers[LIMIT_MODEL_OUTPUTS]; // by place in request.output_order
  int64_t held_ns;
  uint8_t *memory;
  int k;            // comparing: this output,
  int64_t compared; //   so many of its elements are done
  struct difference difference;
};

// The slots of one model on one device.
struct shadow {
  struct shadow *next; // of the core's
  struct model *model;
  struct share share;
  struct queue queues[FUSION_MODES]; // no request ever waits here: whose batch it is
  const struct backend_ops *backend;
  struct device *device;
  uint8_t *memory;
  size_t bytes, slot_bytes;
  size_t inputs[LIMIT_MODEL_INPUTS], answers[LIMIT_MODEL_OUTPUTS], outputs[LIMIT_MODEL_OUTPUTS],
      seqlens, positions; // offsets in a slot
  struct shadow_slot *free;
  int n_slots;
  struct shadow_slot slots[];
};

// Of one core: those that wait, in order, and the one at work.
struct shadows {
  struct shadow *all;
  struct shadow_slot *first, *last;
  struct shadow_slot *running, *comparing; // at most one of both
};

// The thread that loads. The model's ab.shadow is above 0.
MUST_USE enum status shadow_open(const struct backend_ops *backend, struct device *device,
                                 struct model *model, struct shadow **out, struct error *err);
void shadow_close(struct shadow *shadow); // no slot is in use; NULL is fine

// A request that ran, not yet answered: its turn? Then it waits in a slot from now on. `hurry`: the
// server is ending, nothing new begins.
void shadow_offer(struct shadows *shadows, struct shadow *shadow, const struct request *request,
                  bool hurry, int64_t now_ns);
bool shadow_pending(const struct shadows *shadows); // one waits or is at work
// The first that waits is at work: `running`. The caller runs it.
struct shadow_slot *shadow_take(struct shadows *shadows);
void shadow_ran(struct shadows *shadows, int64_t compute_ns); // it is to be compared
void shadow_failed(struct shadows *shadows);                  // its run failed
void shadow_compare(struct shadows *shadows);                 // a slice of `comparing`
// All but a running one.
void shadow_drop_all(struct shadows *shadows, enum shadow_drop why);
// Those that have waited for too long; when the next one will have.
int64_t shadow_expire(struct shadows *shadows, int64_t now_ns);

#endif
