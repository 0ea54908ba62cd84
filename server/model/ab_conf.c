#include "model/ab_conf.h"

void ab_conf_read(struct conf_report *report, const struct conf_node *root, struct model *model) {
  const struct conf_node *ab = conf_find(root, "ab");
  double unfused = 0;
  int64_t seed = 0;
  if (ab == NULL) return;
  if (!model->fusion_available[FUSION_ON] || !model->fusion_available[FUSION_OFF])
    conf_fail_key(report, ab, "needs fusion: ab, which loads both plans");
  if (!conf_is_map(report, ab)) return;
  (void)conf_check_keys(report, ab, "unfused_share|seed");
  const struct conf_node *unfused_node = conf_find(ab, "unfused_share"),
                         *seed_node = conf_find(ab, "seed");
  if (unfused_node != NULL) (void)conf_float(report, unfused_node, 0, 1, &unfused);
  if (seed_node != NULL) (void)conf_int(report, seed_node, 0, INT64_MAX, &seed);
  share_init(&model->unfused, unfused, (uint64_t)seed);
}
