// The card's memory counters while it works: CUPTI's PM sampling, opened late by name (libcupti
// comes with the toolkit, not with the driver). The card writes down every interval, by a timer of
// its own, what dram__bytes_read.sum and dram__bytes_write.sum have counted; both fit in one pass.
//
// What was learnt by trying (an H200, CUPTI 13.0): work runs at its usual speed meanwhile; samples
// are on the clock of %globaltimer at first, and then fall behind it by some 3 us a second; at
// intervals too short for what reads them samples are lost and the overflow flag stays 0; a session
// that was decoded once, after its stop, counted twice.
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cupti_open.h"
#include "base/log.h"

#ifdef WITH_CUPTI
#include <cupti_pmsampling.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <stdlib.h>

#define BUFFER_BYTES ((size_t)64 << 20) // the card's, for samples that nobody has taken yet
#define SAMPLES 2000                    // of one image of the host's
#define METRICS 2
static const char *metrics[METRICS] = {"dram__bytes_read.sum", "dram__bytes_write.sum"};

// Every function of CUPTI that is used, by its type in the headers.
#define FUNCTIONS(X)                                                                               \
  X(cuptiGetResultString)                                                                          \
  X(cuptiProfilerInitialize)                                                                       \
  X(cuptiDeviceGetChipName)                                                                        \
  X(cuptiProfilerHostInitialize)                                                                   \
  X(cuptiProfilerHostDeinitialize)                                                                 \
  X(cuptiProfilerHostConfigAddMetrics)                                                             \
  X(cuptiProfilerHostGetConfigImageSize)                                                           \
  X(cuptiProfilerHostGetConfigImage)                                                               \
  X(cuptiProfilerHostEvaluateToGpuValues)                                                          \
  X(cuptiPmSamplingGetCounterAvailability)                                                         \
  X(cuptiPmSamplingEnable)                                                                         \
  X(cuptiPmSamplingDisable)                                                                        \
  X(cuptiPmSamplingSetConfig)                                                                      \
  X(cuptiPmSamplingStart)                                                                          \
  X(cuptiPmSamplingStop)                                                                           \
  X(cuptiPmSamplingDecodeData)                                                                     \
  X(cuptiPmSamplingGetCounterDataSize)                                                             \
  X(cuptiPmSamplingCounterDataImageInitialize)                                                     \
  X(cuptiPmSamplingGetCounterDataInfo)                                                             \
  X(cuptiPmSamplingCounterDataGetSampleInfo)

struct cupti {
#define MEMBER(name) __typeof__(&name) name;
  FUNCTIONS(MEMBER)
#undef MEMBER
};

struct counter_source {
  struct device *device;
  struct cupti cupti;
  CUpti_Profiler_Host_Object *host;
  CUpti_PmSampling_Object *sampling;
  uint8_t *available, *config, *image; // available: the host object looks at it
  size_t config_bytes, image_bytes;
  int64_t interval_ns;
  bool started;
  // the copy of known size
  cudaStream_t stream;
  cudaEvent_t done;
  void *from, *to;
  size_t copy_bytes;
  int n_copies;
  int64_t *stamps; // [2], pinned
};

// A struct of parameters with its size, as all of CUPTI's functions want it.
#define PARAMS(type, name, ...) type name = {.structSize = type##_STRUCT_SIZE, __VA_ARGS__}

static enum status checked(struct counter_source *s, CUptiResult rc, const char *what,
                           struct error *err) {
  const char *text = "";
  if (rc == CUPTI_SUCCESS) return STATUS_OK;
  s->cupti.cuptiGetResultString(rc, &text);
  return error_set(err, STATUS_UNAVAILABLE, "%s: %s (%d)", what, text, (int)rc);
}
#define CALL(source, err, function, ...)                                                           \
  checked(source, (source)->cupti.function(__VA_ARGS__), #function, err)

// ---- opening ----
static bool open_library(struct cupti *cupti, struct error *err) {
#define FUNCTION(name) {#name, (void **)(void *)&cupti->name},
  const struct cupti_function functions[] = {FUNCTIONS(FUNCTION)};
#undef FUNCTION
  char why[160];
  if (cupti_open(functions, sizeof functions / sizeof *functions, why, sizeof why)) return true;
  (void)error_set(err, STATUS_UNAVAILABLE, "%s", why);
  return false;
}

static enum status no_memory(struct error *err) {
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the card's counters");
}

// What this card's counters are called, and the one pass in which ours are counted.
static enum status open_host(struct counter_source *s, struct error *err) {
  size_t index = (size_t)s->device->index;
  PARAMS(CUpti_Profiler_Initialize_Params, init);
  PARAMS(CUpti_Device_GetChipName_Params, chip, .deviceIndex = index);
  PARAMS(CUpti_PmSampling_GetCounterAvailability_Params, available, .deviceIndex = index);
  enum status status = CALL(s, err, cuptiProfilerInitialize, &init);
  if (status == STATUS_OK) status = CALL(s, err, cuptiDeviceGetChipName, &chip);
  if (status == STATUS_OK) status = CALL(s, err, cuptiPmSamplingGetCounterAvailability, &available);
  if (status != STATUS_OK) return status;
  s->available = available.pCounterAvailabilityImage =
      malloc(available.counterAvailabilityImageSize);
  if (!s->available) return no_memory(err);
  status = CALL(s, err, cuptiPmSamplingGetCounterAvailability, &available);
  if (status != STATUS_OK) return status;
  PARAMS(CUpti_Profiler_Host_Initialize_Params, host,
         .profilerType = CUPTI_PROFILER_TYPE_PM_SAMPLING, .pChipName = chip.pChipName,
         .pCounterAvailabilityImage = s->available);
  status = CALL(s, err, cuptiProfilerHostInitialize, &host);
  s->host = host.pHostObject;
  return status;
}

static enum status open_config(struct counter_source *s, struct error *err) {
  PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add, .pHostObject = s->host,
         .ppMetricNames = metrics, .numMetrics = METRICS);
  PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size, .pHostObject = s->host);
  enum status status = CALL(s, err, cuptiProfilerHostConfigAddMetrics, &add);
  if (status == STATUS_OK) status = CALL(s, err, cuptiProfilerHostGetConfigImageSize, &size);
  if (status != STATUS_OK) return status;
  s->config_bytes = size.configImageSize;
  s->config = malloc(s->config_bytes);
  if (!s->config) return no_memory(err);
  PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image, .pHostObject = s->host,
         .configImageSize = s->config_bytes, .pConfigImage = s->config);
  return CALL(s, err, cuptiProfilerHostGetConfigImage, &image);
}

static enum status open_sampling(struct counter_source *s, struct error *err) {
  PARAMS(CUpti_PmSampling_Enable_Params, enable, .deviceIndex = (size_t)s->device->index);
  enum status status = CALL(s, err, cuptiPmSamplingEnable, &enable);
  if (status != STATUS_OK) return status;
  s->sampling = enable.pPmSamplingObject;
  PARAMS(CUpti_PmSampling_GetCounterDataSize_Params, size, .pPmSamplingObject = s->sampling,
         .pMetricNames = metrics, .numMetrics = METRICS, .maxSamples = SAMPLES);
  status = CALL(s, err, cuptiPmSamplingGetCounterDataSize, &size);
  if (status != STATUS_OK) return status;
  s->image_bytes = size.counterDataSize;
  s->image = malloc(s->image_bytes);
  return s->image ? STATUS_OK : no_memory(err);
}

// ---- a copy of known size ----
// Of three times what the L2 holds, so that nothing of one copy is found there by the next, as
// often as it takes to last for copy_ns.
static enum status open_copy(struct counter_source *s, int64_t copy_ns, struct error *err) {
  const struct device_rates *rates = &s->device->caps.plan.rates;
  const size_t mib = (size_t)1 << 20;
  size_t bytes = 3 * (size_t)rates->cache_bytes;
  s->copy_bytes = bytes < 32 * mib ? 32 * mib : bytes / mib * mib;
  double one_ns = 2e9 * (double)s->copy_bytes / rates->copy; // read and written
  s->n_copies = (int)((double)copy_ns / one_ns) + 2;
  enum status status = cuda_memory_take(s->device, LEDGER_WORKSPACE, (int64_t)s->copy_bytes,
                                        "the audit's copy of known size", &s->from, err);
  if (status == STATUS_OK)
    status = cuda_memory_take(s->device, LEDGER_WORKSPACE, (int64_t)s->copy_bytes,
                              "the audit's copy of known size", &s->to, err);
  if (status != STATUS_OK) return status;
  void *stamps = NULL;
  int rc = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
  if (rc == 0) rc = cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming);
  if (rc == 0) rc = cudaHostAlloc(&stamps, 2 * sizeof *s->stamps, cudaHostAllocPortable);
  if (rc == 0) rc = cudaMemsetAsync(s->from, 1, s->copy_bytes, s->stream);
  if (rc == 0) rc = cudaStreamSynchronize(s->stream);
  s->stamps = stamps;
  return cuda_check(s->device, rc, "the audit's copy", err);
}

static int stamp(struct counter_source *s, int64_t *slot, int64_t wait_ns) {
  static const struct copy_list nothing;
  struct copy_stamps stamps = {.began = slot, .wait_ns = wait_ns};
  return copy_run(&nothing, &stamps, s->stream);
}

// The first one leaves the L2 as each leaves it to the next: full of lines that are still to be
// written back. So as many bytes are written between the stamps as were copied. It is done so long
// before them that none of its own are counted.
static enum status copy_begin(struct counter_source *s, int64_t quiet_ns) {
  if (cuda_enter(s->device, NULL) != STATUS_OK) return STATUS_UNAVAILABLE;
  int rc = 0;
  for (int i = 0; i <= s->n_copies && rc == 0; i++) {
    if (i == 1) rc = stamp(s, &s->stamps[0], quiet_ns);
    if (rc == 0)
      rc = cudaMemcpyAsync(s->to, s->from, s->copy_bytes, cudaMemcpyDeviceToDevice, s->stream);
  }
  if (rc == 0) rc = stamp(s, &s->stamps[1], 0);
  if (rc == 0) rc = cudaEventRecord(s->done, s->stream);
  return cuda_check(s->device, rc, "the audit's copy", NULL);
}

static int copy_poll(struct counter_source *s, struct counter_copy *out) {
  if (cuda_enter(s->device, NULL) != STATUS_OK) return -1;
  int rc = cudaEventQuery(s->done);
  if (rc == cudaErrorNotReady) return 0;
  if (cuda_check(s->device, rc, "the audit's copy", NULL) != STATUS_OK) return -1;
  double bytes = (double)s->copy_bytes * s->n_copies;
  *out = (struct counter_copy){s->stamps[0], s->stamps[1], bytes, bytes};
  return 1;
}

static void close_copy(struct counter_source *s) {
  if (cuda_enter(s->device, NULL) == STATUS_OK) {
    if (s->stream) (void)cudaStreamSynchronize(s->stream);
    if (s->done) (void)cudaEventDestroy(s->done);
    if (s->stamps) (void)cudaFreeHost(s->stamps);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
  }
  cuda_memory_give(s->device, LEDGER_WORKSPACE, s->from, (int64_t)s->copy_bytes);
  cuda_memory_give(s->device, LEDGER_WORKSPACE, s->to, (int64_t)s->copy_bytes);
}

// ---- samples ----
static void stop(struct counter_source *s) {
  PARAMS(CUpti_PmSampling_Stop_Params, params, .pPmSamplingObject = s->sampling);
  if (s->started) (void)CALL(s, NULL, cuptiPmSamplingStop, &params);
  s->started = false;
}

static enum status begin(struct counter_source *s, struct error *err) {
  PARAMS(CUpti_PmSampling_SetConfig_Params, set, .pPmSamplingObject = s->sampling,
         .configSize = s->config_bytes, .pConfig = s->config, .hardwareBufferSize = BUFFER_BYTES,
         .samplingInterval = (uint64_t)s->interval_ns,
         .triggerMode = CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL,
         .hwBufferAppendMode = CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST);
  PARAMS(CUpti_PmSampling_Start_Params, params, .pPmSamplingObject = s->sampling);
  enum status status = CALL(s, err, cuptiPmSamplingSetConfig, &set);
  if (status == STATUS_OK) status = CALL(s, err, cuptiPmSamplingStart, &params);
  s->started = status == STATUS_OK;
  return status;
}

static void disable(struct counter_source *s) {
  PARAMS(CUpti_PmSampling_Disable_Params, params, .pPmSamplingObject = s->sampling);
  stop(s);
  if (s->sampling) (void)CALL(s, NULL, cuptiPmSamplingDisable, &params);
  s->sampling = NULL;
}

// Where a session does not begin again it is made anew.
static enum status start(struct counter_source *s, struct error *err) {
  enum status status = cuda_enter(s->device, err); // this thread's context
  if (status != STATUS_OK) return status;
  stop(s);
  if (begin(s, NULL) == STATUS_OK) return STATUS_OK;
  disable(s);
  free(s->image);
  s->image = NULL;
  status = open_sampling(s, err);
  return status == STATUS_OK ? begin(s, err) : status;
}

static enum status sample_times(struct counter_source *s, size_t index, struct counter_sample *out,
                                struct error *err) {
  PARAMS(CUpti_PmSampling_CounterData_GetSampleInfo_Params, info, .pPmSamplingObject = s->sampling,
         .pCounterDataImage = s->image, .counterDataImageSize = s->image_bytes,
         .sampleIndex = index);
  enum status status = CALL(s, err, cuptiPmSamplingCounterDataGetSampleInfo, &info);
  *out = (struct counter_sample){.began_ns = (int64_t)info.startTimestamp,
                                 .ended_ns = (int64_t)info.endTimestamp};
  return status;
}

static int take(struct counter_source *s, struct counter_sample *out, int most,
                struct counter_news *news, struct error *err) {
  PARAMS(CUpti_PmSampling_CounterDataImage_Initialize_Params, clear,
         .pPmSamplingObject = s->sampling, .counterDataSize = s->image_bytes,
         .pCounterData = s->image);
  PARAMS(CUpti_PmSampling_DecodeData_Params, decode, .pPmSamplingObject = s->sampling,
         .pCounterDataImage = s->image, .counterDataImageSize = s->image_bytes);
  PARAMS(CUpti_PmSampling_GetCounterDataInfo_Params, info, .pCounterDataImage = s->image,
         .counterDataImageSize = s->image_bytes);
  FW_ASSERT(most >= SAMPLES);
  enum status status = cuda_enter(s->device, err);
  if (status == STATUS_OK) status = CALL(s, err, cuptiPmSamplingCounterDataImageInitialize, &clear);
  if (status != STATUS_OK) return -1;
  CUptiResult rc = s->cupti.cuptiPmSamplingDecodeData(&decode);
  // CUPTI's word for a buffer that has run over; the flag is another.
  news->lost = rc == CUPTI_ERROR_OUT_OF_MEMORY || decode.overflow != 0;
  if (rc != CUPTI_ERROR_OUT_OF_MEMORY) status = checked(s, rc, "cuptiPmSamplingDecodeData", err);
  if (status == STATUS_OK) status = CALL(s, err, cuptiPmSamplingGetCounterDataInfo, &info);
  if (status != STATUS_OK) return -1;
  size_t n = info.numCompletedSamples < (size_t)most ? info.numCompletedSamples : (size_t)most;
  for (size_t i = 0; i < n; i++)
    if (sample_times(s, i, &out[i], err) != STATUS_OK) return -1;
  news->more =
      decode.decodeStopReason == CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL && n > 0;
  return (int)n;
}

static bool evaluate(struct counter_source *s, int index, struct counter_sample *out) {
  double values[METRICS] = {0};
  PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, params, .pHostObject = s->host,
         .pCounterDataImage = s->image, .counterDataImageSize = s->image_bytes,
         .rangeIndex = (size_t)index, .ppMetricNames = metrics, .numMetrics = METRICS,
         .pMetricValues = values);
  if (CALL(s, NULL, cuptiProfilerHostEvaluateToGpuValues, &params) != STATUS_OK) return false;
  out->read_bytes = values[0];
  out->write_bytes = values[1];
  return true;
}

static void source_close(struct counter_source *s) {
  PARAMS(CUpti_Profiler_Host_Deinitialize_Params, deinit, .pHostObject = s->host);
  if (s->sampling && cuda_enter(s->device, NULL) == STATUS_OK) disable(s);
  if (s->host) (void)CALL(s, NULL, cuptiProfilerHostDeinitialize, &deinit);
  close_copy(s);
  free(s->available), free(s->config), free(s->image);
  // The library stays: it may have threads of its own.
  free(s);
}

static enum status source_open(struct device *device, const struct counter_options *options,
                               struct counter_source **out, struct error *err) {
  struct counter_source *s = calloc(1, sizeof *s);
  if (!s) return no_memory(err);
  s->device = device;
  s->interval_ns = options->interval_ns;
  enum status status = cuda_enter(device, err);
  if (status == STATUS_OK && !open_library(&s->cupti, err)) status = STATUS_UNAVAILABLE;
  if (status == STATUS_OK) status = open_host(s, err);
  if (status == STATUS_OK) status = open_config(s, err);
  if (status == STATUS_OK) status = open_sampling(s, err);
  if (status == STATUS_OK) status = open_copy(s, options->copy_ns, err);
  device->counted = status == STATUS_OK;
  if (status == STATUS_OK)
    *out = s;
  else
    source_close(s);
  return status;
}
#else
// Built where CUPTI's headers were not.
static enum status source_open(struct device *device, const struct counter_options *options,
                               struct counter_source **out, struct error *err) {
  (void)device, (void)options, (void)out;
  return error_set(err, STATUS_UNIMPLEMENTED, "this program was built without CUPTI's headers");
}
static void source_close(struct counter_source *s) {
  (void)s;
}
static enum status start(struct counter_source *s, struct error *err) {
  (void)s;
  return error_set(err, STATUS_UNIMPLEMENTED, "no counters");
}
static int take(struct counter_source *s, struct counter_sample *out, int most,
                struct counter_news *news, struct error *err) {
  (void)s, (void)out, (void)most, (void)news;
  (void)error_set(err, STATUS_UNIMPLEMENTED, "no counters");
  return -1;
}
static bool evaluate(struct counter_source *s, int index, struct counter_sample *out) {
  (void)s, (void)index, (void)out;
  return false;
}
static enum status copy_begin(struct counter_source *s, int64_t quiet_ns) {
  (void)s, (void)quiet_ns;
  return STATUS_UNIMPLEMENTED;
}
static int copy_poll(struct counter_source *s, struct counter_copy *out) {
  (void)s, (void)out;
  return -1;
}
#endif

const struct counter_ops cuda_counters = {.open = source_open,
                                          .close = source_close,
                                          .start = start,
                                          .take = take,
                                          .evaluate = evaluate,
                                          .copy_begin = copy_begin,
                                          .copy_poll = copy_poll};
