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
static int64_t latest_start(const struct sums *sums, const struct service *service,
                            int64_t now_ns) {
  if (sums->deadline_ns == CLOCK_NEVER) return CLOCK_NEVER;
  return sums->deadline_ns - (service ? service_estimate_ns(service, sums->tokens, now_ns) : 0);
}

struct batch_choice batch_choose(const struct batch_item *items, int32_t n_items,
                                 const struct batch_rule *rule, const struct service *service,
                                 bool hurry, int64_t now_ns) {
  struct sums sums = prefix_take(items, n_items, rule);
  struct batch_choice choice = {
      .n = sums.n, .n_tokens = sums.tokens, .latest_ns = latest_start(&sums, service, now_ns)};
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

static int64_t run_ns(const struct service *service, int64_t tokens, int64_t now_ns) {
  return service_with_margin_ns(service_least_ns(service, tokens, now_ns));
}

// The longest beginning of the batch that is on time as a whole.
static struct batch_choice cut(const struct batch_item *items, const struct batch_choice *whole,
                               const struct service *service, int64_t from_ns, int64_t now_ns) {
  struct batch_choice part = {.close = CLOSE_DEADLINE, .latest_ns = CLOCK_NEVER};
  int64_t tokens = 0, deadline_ns = CLOCK_NEVER;
  for (int32_t i = 0; i < whole->n; i++) {
    tokens += items[i].n_tokens;
    if (items[i].deadline_ns < deadline_ns) deadline_ns = items[i].deadline_ns;
    if (from_ns + run_ns(service, tokens, now_ns) > deadline_ns) break;
    part.n = i + 1;
    part.n_tokens = tokens;
  }
  return part;
}

int64_t batch_on_time(const struct batch_item *items, struct batch_choice *choice,
                      const struct service *service, int64_t from_ns, int64_t now_ns) {
  int64_t whole_ns = run_ns(service, choice->n_tokens, now_ns);
  bool late = false;
  for (int32_t i = 0; i < choice->n && whole_ns > 0; i++)
    late |= items[i].deadline_ns < from_ns + whole_ns;
  if (!late) return 0;
  struct batch_choice part = cut(items, choice, service, from_ns, now_ns);
  double part_ns = (double)run_ns(service, part.n_tokens, now_ns);
  bool worth = part.n > 0 && part_ns * (double)choice->n_tokens <=
                                 BATCH_CUT_COST * (double)whole_ns * (double)part.n_tokens;
  if (!worth) return from_ns + whole_ns;
  *choice = part;
  return 0;
}
