// Requests made from a model's signature: random ones of given lengths, token ids from a file,
// tensors from files.
//
// What a signature says and what is assumed: a first dimension of -1 is the batch, any other -1 is
// the sequence. Names decide what integers mean, as Hugging Face's exports have them: "...mask" is
// 1 on real tokens, "...lengths" counts them, "...type_ids" is 0, "...position_ids" counts up; of
// other integers, one a row beside sequences counts their tokens, and all else holds token ids.
#ifndef CLIENT_INPUT_H
#define CLIENT_INPUT_H

#include "client/oip.h"
#include "client/payload.h"
#include "client/schedule.h"

struct input_rows { // the sequences of one request
  int64_t n;
  const int64_t *lengths; // [n], each >= 1
  const int64_t *ids;     // all sequences' ids one after another; NULL: random in [1, max_id]
};

bool input_has_sequences(
    const struct oip_model *model); // some input has a -1 after its first dimension
bool input_takes_ids(const struct oip_model *model); // token ids are the values of some input
// One request: every input of the model, padded to the longest row where it has a sequence
// dimension. `tokens` counts real ones where the model can tell them from padding (a mask or
// lengths), else all positions; rows without sequences.
MUST_USE enum status input_make(const struct oip_model *model, const struct input_rows *rows,
                                int64_t max_id, struct rng *rng, struct request_input *out,
                                struct error *err);

// Token ids, one JSON value a line: [101, 7592, 102], or {"input_ids": [...]}, or [[...], [...]]
// for a request of several rows. `batch` lines of one row each become one request. Calls `add` for
// each request, in the file's order.
typedef enum status (*input_add)(const struct input_rows *rows, void *arg, struct error *err);
MUST_USE enum status input_read_lines(const char *path, int64_t batch, input_add add, void *arg,
                                      struct error *err);
// From --input specifications (spec.h). Tokens are the first dimension of the first tensor, times
// the second for integer tensors of two dimensions.
MUST_USE enum status input_from_files(const struct text_list *specs, struct request_input *out,
                                      struct error *err);

#endif
