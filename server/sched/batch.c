#include "sched/batch.h"

const char *batch_close_name(enum batch_close close) {
  static const char *const names[CLOSE_COUNT] = {"full", "delay", "idle", "deadline"};
  return close < CLOSE_COUNT ? names[close] : "unknown";
}

int64_t batch_urgency(int64_t admitted_ns, int64_t deadline_ns) {
  int64_t patient_ns = admitted_ns + BATCH_PATIENCE_NS;
  return deadline_ns < patient_ns ? deadline_ns : patient_ns;
}

struct sums {
  int32_t n;
  int64_t tokens, seqs, oldest_ns, deadline_ns;
  bool full; // something did not fit, or the last place is taken
};

// The longest prefix that the rule allows; at least one item.
static struct sums prefix_take(const struct batch_item *items, int32_t n_items,
                               const struct batch_rule *rule) {
  struct sums sums = {.oldest_ns = CLOCK_NEVER, .deadline_ns = CLOCK_NEVER};
  for (int32_t i = 0; i < n_items; i++) {
    const struct batch_item *item = &items[i];
    bool fits = sums.tokens + item->n_tokens <= rule->max_tokens &&
                sums.seqs + item->n_seqs <= rule->max_seqs;
    if (i > 0 && (!fits || sums.n >= rule->max_requests)) {
      sums.full = true;
      break;
    }
    sums.n++;
    sums.tokens += item->n_tokens;
    sums.seqs += item->n_seqs;
    if (item->admitted_ns < sums.oldest_ns) sums.oldest_ns = item->admitted_ns;
    if (item->deadline_ns < sums.deadline_ns) sums.deadline_ns = item->deadline_ns;
  }
  if (sums.n >= rule->max_requests || sums.tokens >= rule->max_tokens ||
      sums.seqs >= rule->max_seqs)
    sums.full = true;
  return sums;
}

// The last moment at which the nearest deadline can still be kept.
static int64_t latest_start(const struct sums *sums, const struct pace *pace) {
  if (sums->deadline_ns == CLOCK_NEVER) return CLOCK_NEVER;
  return sums->deadline_ns - (pace ? pace_estimate_ns(pace, sums->tokens) : 0);
}

struct batch_choice batch_choose(const struct batch_item *items, int32_t n_items,
                                 const struct batch_rule *rule, const struct pace *pace, bool hurry,
                                 int64_t now_ns) {
  struct sums sums = prefix_take(items, n_items, rule);
  struct batch_choice choice = {
      .n = sums.n, .n_tokens = sums.tokens, .latest_ns = latest_start(&sums, pace)};
  int64_t due_ns = sums.oldest_ns + rule->max_delay_ns;
  if (sums.full)
    choice.close = CLOSE_FULL;
  else if (hurry || rule->max_delay_ns <= 0)
    choice.close = CLOSE_IDLE;
  else if (now_ns >= due_ns)
    choice.close = CLOSE_DELAY;
  else if (now_ns >= choice.latest_ns)
    choice.close = CLOSE_DEADLINE;
  else
    return (struct batch_choice){
        .n = 0, .wait_until_ns = due_ns < choice.latest_ns ? due_ns : choice.latest_ns};
  return choice;
}
