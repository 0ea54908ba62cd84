#include "model/ab_conf.h"

// Above what the plans' orders of addition make of a whole model, below what anybody would call
// the same answer: twice the accuracy contract of one operation, and as many again for depth. 0:
// integers are not computed in.
static double alarm_of(enum dtype dtype) {
  return dtype == DTYPE_F32 ? 1e-4 : dtype == DTYPE_F16 ? 1e-2 : dtype == DTYPE_BF16 ? 5e-2 : 0;
}

// By the coarsest dtype that anything is computed in: a result that one plan rounds to 16 bits on
// its way another one may keep in fp32.
static double alarm_for(const struct model *model) {
  double alarm = alarm_of(model->compute);
  for (int32_t t = 0; t < model->graph.n_tensors; t++) {
    const struct tensor *tensor = &model->graph.tensors[t];
    if (tensor->kind == TENSOR_ACTIVATION && alarm_of(tensor->dtype) > alarm)
      alarm = alarm_of(tensor->dtype);
  }
  return alarm;
}

#define ROWS 512 // of a shadow, unless the file says more
#define SLOTS 2
#define SLOTS_MAX 64

static void read_shadow(struct conf_report *report, const struct conf_node *ab,
                        struct model *model) {
  const struct conf_node *share = conf_find(ab, "shadow"), *alarm = conf_find(ab, "alarm"),
                         *tokens = conf_find(ab, "shadow_tokens"),
                         *slots = conf_find(ab, "shadow_slots");
  struct model_shadow *shadow = &model->shadow;
  int64_t rows = model->batch.max_tokens < ROWS ? model->batch.max_tokens : ROWS, n = SLOTS;
  shadow->alarm = alarm_for(model);
  if (share != NULL) (void)conf_float(report, share, 0, 1, &shadow->share);
  if (alarm != NULL) (void)conf_float(report, alarm, 0, 1e9, &shadow->alarm);
  if (tokens != NULL) (void)conf_int(report, tokens, 1, model->batch.max_tokens, &rows);
  if (slots != NULL) (void)conf_int(report, slots, 1, SLOTS_MAX, &n);
  shadow->max_rows = (int32_t)rows;
  shadow->slots = (int32_t)n;
  const struct conf_node *idle = alarm != NULL ? alarm : tokens != NULL ? tokens : slots;
  if (share == NULL && idle != NULL)
    conf_fail_key(report, idle, "is for shadows, and ab.shadow is not set");
}

void ab_conf_read(struct conf_report *report, const struct conf_node *root, struct model *model) {
  const struct conf_node *ab = conf_find(root, "ab");
  double unfused = 0;
  int64_t seed = 0;
  if (ab == NULL) return;
  if (!model->fusion_available[FUSION_ON] || !model->fusion_available[FUSION_OFF])
    conf_fail_key(report, ab, "needs fusion: ab, which loads both plans");
  if (!conf_is_map(report, ab)) return;
  (void)conf_check_keys(report, ab, "unfused_share|shadow|alarm|shadow_tokens|shadow_slots|seed");
  const struct conf_node *unfused_node = conf_find(ab, "unfused_share"),
                         *seed_node = conf_find(ab, "seed");
  if (unfused_node != NULL) (void)conf_float(report, unfused_node, 0, 1, &unfused);
  if (seed_node != NULL) (void)conf_int(report, seed_node, 0, INT64_MAX, &seed);
  share_init(&model->unfused, unfused, (uint64_t)seed);
  read_shadow(report, ab, model);
  model->shadow.seed = (uint64_t)seed;
}
