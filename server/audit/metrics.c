// The audit's part of /metrics. Every series exists from the start; none without an audit.
#include "obs/metrics.h"
#include "audit/audit.h"
#include "obs/expo.h"

#include <stdio.h>

static struct audits audits;

#define LABELS_BYTES 720

static unsigned long long load(const _Atomic uint64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

static void labels_of(const struct audit_row *row, char *out) {
  char model[2 * LIMIT_NAME_BYTES], version[72];
  snprintf(out, LABELS_BYTES, "model=\"%s\",version=\"%s\",fusion=\"%s\",device=\"%s\"",
           expo_escaped(row->labels.model, model, sizeof model),
           expo_escaped(row->labels.version, version, sizeof version), row->labels.fusion,
           row->labels.device);
}

static const char *size_name(int size, char *out, size_t out_bytes) {
  if (audit_size_most[size] > 0)
    snprintf(out, out_bytes, "%d", (int)audit_size_most[size]);
  else
    snprintf(out, out_bytes, "more");
  return out;
}

// ---- by model, mode and size ----
struct sum { // of struct audit_sums
  size_t offset;
  const char *labels;
};

static unsigned long long sum_at(const struct audit_sums *sums, size_t offset) {
  return load((const _Atomic uint64_t *)(const void *)((const char *)sums + offset));
}

static void size_family(struct expo *expo, const char *name, const char *help,
                        const struct sum *sums, int n_sums) {
  char labels[LABELS_BYTES], size[16];
  expo_family(expo, name, "counter", help);
  for (int i = 0, n = audit_row_count(); i < n; i++) {
    const struct audit_row *row = audit_row_at(i);
    labels_of(row, labels);
    for (int s = 0; s < AUDIT_SIZES; s++)
      for (int k = 0; k < n_sums; k++)
        expo_text(expo, "%s{%s,tokens=\"%s\"%s} %llu\n", name, labels,
                  size_name(s, size, sizeof size), sums[k].labels,
                  sum_at(&row->sizes[s], sums[k].offset));
  }
}

static void size_families(struct expo *expo) {
#define AT(field) offsetof(struct audit_sums, field)
  static const struct sum batches[] = {{AT(batches), ""}};
  static const struct sum shared[] = {{AT(shared), ""}};
  static const struct sum measured[] = {{AT(read_measured), ",direction=\"read\""},
                                        {AT(write_measured), ",direction=\"write\""}};
  static const struct sum expected[] = {{AT(read_expected), ",direction=\"read\""},
                                        {AT(write_expected), ",direction=\"write\""}};
#undef AT
  size_family(expo, "fusewire_audit_batches_total",
              "Batches whose device memory traffic was counted, by most tokens computed.", batches,
              1);
  size_family(expo, "fusewire_audit_shared_batches_total",
              "Of these, those that ran beside batches of other models or modes for a tenth of "
              "their time or more: their part of it is known only as well as it was expected.",
              shared, 1);
  size_family(expo, "fusewire_audit_measured_bytes_total",
              "Device memory traffic of these batches, as the device counted it.", measured, 2);
  size_family(expo, "fusewire_audit_expected_bytes_total",
              "Device memory traffic that these batches were expected to cause.", expected, 2);
}

// ---- by model and mode ----
static void ratio_series(struct expo *expo, const char *labels, const char *direction,
                         const struct audit_hist *hist, double sum) {
  unsigned long long below = 0;
  const char *name = "fusewire_audit_ratio";
  for (int i = 0; i < AUDIT_RATIOS; i++) {
    below += load(&hist->counts[i]);
    expo_text(expo, "%s_bucket{%s,direction=\"%s\",le=\"%.9g\"} %llu\n", name, labels, direction,
              audit_ratio_edges[i], below);
  }
  below += load(&hist->counts[AUDIT_RATIOS]);
  expo_text(expo, "%s_bucket{%s,direction=\"%s\",le=\"+Inf\"} %llu\n", name, labels, direction,
            below);
  expo_text(expo, "%s_sum{%s,direction=\"%s\"} %.9g\n", name, labels, direction, sum);
  expo_text(expo, "%s_count{%s,direction=\"%s\"} %llu\n", name, labels, direction, below);
}

static void row_families(struct expo *expo) {
  char labels[LABELS_BYTES];
  int n = audit_row_count();
  expo_family(expo, "fusewire_audit_ratio", "histogram",
              "Counted over expected bytes of batches that were not shared.");
  for (int i = 0; i < n; i++) {
    const struct audit_row *row = audit_row_at(i);
    labels_of(row, labels);
    ratio_series(expo, labels, "read", &row->read_ratio, atomic_load(&row->read_ratio.sum));
    ratio_series(expo, labels, "write", &row->write_ratio, atomic_load(&row->write_ratio.sum));
  }
  expo_family(expo, "fusewire_audit_unmeasured_batches_total", "counter",
              "Batches that were to be counted and could not be, by why.");
  for (int i = 0; i < n; i++) {
    const struct audit_row *row = audit_row_at(i);
    labels_of(row, labels);
    for (int why = AUDIT_LOST; why <= AUDIT_SKIPPED; why++)
      expo_text(expo, "fusewire_audit_unmeasured_batches_total{%s,reason=\"%s\"} %llu\n", labels,
                audit_outcome_name((enum audit_outcome)why), load(&row->unmeasured[why]));
  }
  expo_family(expo, "fusewire_audit_out_of_band", "gauge",
              "1 while counted over expected bytes are outside audit.band.");
  for (int i = 0; i < n; i++) {
    const struct audit_row *row = audit_row_at(i);
    labels_of(row, labels);
    expo_text(expo, "fusewire_audit_out_of_band{%s,direction=\"read\"} %d\n", labels,
              atomic_load(&row->read_out));
    expo_text(expo, "fusewire_audit_out_of_band{%s,direction=\"write\"} %d\n", labels,
              atomic_load(&row->write_out));
  }
}

// ---- by device ----
static void traffic_family(struct expo *expo) {
  static const char *const parts[] = {"batches", "copies", "other"}; // enum decoder_part
  expo_family(expo, "fusewire_audit_traffic_bytes_total", "counter",
              "All device memory traffic that was counted: while batches computed, while they only "
              "copied in or out, and what no batch explains.");
  for (int i = 0; i < audits.n; i++)
    for (int p = 0; p < 3; p++) {
      const struct decoder_stats *stats = &audits.list[i]->decoder.stats;
      const char *name = audits.list[i]->options.name;
      expo_text(expo,
                "fusewire_audit_traffic_bytes_total{device=\"%s\",direction=\"read\",part=\"%s\"} "
                "%llu\n",
                name, parts[p], load(&stats->read[p]));
      expo_text(expo,
                "fusewire_audit_traffic_bytes_total{device=\"%s\",direction=\"write\",part=\"%s\"} "
                "%llu\n",
                name, parts[p], load(&stats->write[p]));
    }
}

static void samples_family(struct expo *expo) {
  expo_family(expo, "fusewire_audit_samples_total", "counter",
              "Samples of the counters: looked at, and passed over.");
  for (int i = 0; i < audits.n; i++) {
    const struct decoder_stats *stats = &audits.list[i]->decoder.stats;
    const char *name = audits.list[i]->options.name;
    expo_text(expo, "fusewire_audit_samples_total{device=\"%s\",what=\"evaluated\"} %llu\n", name,
              load(&stats->samples_evaluated));
    expo_text(expo, "fusewire_audit_samples_total{device=\"%s\",what=\"passed\"} %llu\n", name,
              load(&stats->samples_passed));
  }
}

static void counter_family(struct expo *expo, const char *name, const char *help, size_t offset) {
  expo_family(expo, name, "counter", help);
  for (int i = 0; i < audits.n; i++) {
    const char *stats = (const char *)&audits.list[i]->decoder.stats;
    expo_text(expo, "%s{device=\"%s\"} %llu\n", name, audits.list[i]->options.name,
              load((const _Atomic uint64_t *)(const void *)(stats + offset)));
  }
}

static void device_families(struct expo *expo) {
#define AT(field) offsetof(struct decoder_stats, field)
  traffic_family(expo);
  samples_family(expo);
  counter_family(expo, "fusewire_audit_losses_total",
                 "Times that samples were lost, or did not come.", AT(losses));
  counter_family(expo, "fusewire_audit_calibrations_total",
                 "Copies of known size that were counted right.", AT(calibrations));
  counter_family(expo, "fusewire_audit_calibrations_failed_total",
                 "Copies of known size that were counted wrong.", AT(calibrations_failed));
  counter_family(expo, "fusewire_audit_no_room_batches_total",
                 "Batches that were not looked at because too many waited for it already.",
                 AT(batches_skipped));
#undef AT
  expo_family(expo, "fusewire_audit_cpu_seconds_total", "counter",
              "CPU time of the thread that reads the counters.");
  for (int i = 0; i < audits.n; i++)
    expo_text(expo, "fusewire_audit_cpu_seconds_total{device=\"%s\"} %.9g\n",
              audits.list[i]->options.name,
              (double)load(&audits.list[i]->decoder.stats.cpu_ns) * 1e-9);
  expo_family(expo, "fusewire_audit_unexplained_ratio", "gauge",
              "Of the device memory traffic counted in the last seconds, the share that no batch "
              "explains.");
  for (int i = 0; i < audits.n; i++)
    expo_text(expo, "fusewire_audit_unexplained_ratio{device=\"%s\"} %.9g\n",
              audits.list[i]->options.name,
              atomic_load(&audits.list[i]->decoder.stats.unexplained));
  expo_family(expo, "fusewire_audit_calibrated", "gauge",
              "1 while batches are measured: the last copy of known size was counted right, and "
              "nothing was lost since.");
  for (int i = 0; i < audits.n; i++)
    expo_text(expo, "fusewire_audit_calibrated{device=\"%s\"} %d\n", audits.list[i]->options.name,
              audit_state(audits.list[i]) == AUDIT_CALIBRATED);
}

static void write_all(struct expo *expo) {
  size_families(expo);
  row_families(expo);
  device_families(expo);
}

void audit_metrics(const struct audits *all) {
  audits = *all;
  metrics_writer_add(write_all);
}
