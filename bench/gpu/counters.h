// The card's own counters of memory traffic, read in ranges: CUPTI's range profiler, opened late by
// name (libcupti comes with the toolkit, not with the driver). A range counts all bytes that the
// card's memory moved between its begin and its end, whoever caused them; ranges wait for the card.
//
//   counters_open -> { counters_start, { counters_begin, work, counters_end }..., counters_stop,
//   counters_read of each range } repeatedly -> counters_close
#ifndef GPU_COUNTERS_H
#define GPU_COUNTERS_H

#include "backend/cuda/cupti_open.h"
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNTERS_RANGES 1500 // of one session

// Every function of CUPTI that is used, by its type in the headers.
#define COUNTERS_FUNCTIONS(X)                                                                      \
  X(cuptiGetResultString)                                                                          \
  X(cuptiProfilerInitialize)                                                                       \
  X(cuptiDeviceGetChipName)                                                                        \
  X(cuptiProfilerGetCounterAvailability)                                                           \
  X(cuptiProfilerHostInitialize)                                                                   \
  X(cuptiProfilerHostDeinitialize)                                                                 \
  X(cuptiProfilerHostConfigAddMetrics)                                                             \
  X(cuptiProfilerHostGetConfigImageSize)                                                           \
  X(cuptiProfilerHostGetConfigImage)                                                               \
  X(cuptiProfilerHostEvaluateToGpuValues)                                                          \
  X(cuptiRangeProfilerEnable)                                                                      \
  X(cuptiRangeProfilerDisable)                                                                     \
  X(cuptiRangeProfilerGetCounterDataSize)                                                          \
  X(cuptiRangeProfilerCounterDataImageInitialize)                                                  \
  X(cuptiRangeProfilerSetConfig)                                                                   \
  X(cuptiRangeProfilerStart)                                                                       \
  X(cuptiRangeProfilerStop)                                                                        \
  X(cuptiRangeProfilerPushRange)                                                                   \
  X(cuptiRangeProfilerPopRange)                                                                    \
  X(cuptiRangeProfilerDecodeData)                                                                  \
  X(cuptiRangeProfilerGetCounterDataInfo)                                                          \
  X(cuptiRangeProfilerCounterDataGetRangeInfo)

struct counters {
#define COUNTERS_MEMBER(name) __typeof__(&name) name;
  COUNTERS_FUNCTIONS(COUNTERS_MEMBER)
#undef COUNTERS_MEMBER
  CUpti_Profiler_Host_Object *host;
  CUpti_RangeProfiler_Object *ranges;
  uint8_t *available, *config, *data; // available: the host object looks at it
  size_t config_bytes, data_bytes;
  int n_ranges, read_at[COUNTERS_RANGES]; // read_at: a range's place in the data
  char message[200];                      // why something failed
};

static const char *counters_metrics[] = {"dram__bytes_read.sum", "dram__bytes_write.sum"};

static inline bool counters_ok(struct counters *c, CUptiResult rc, const char *what) {
  const char *text = "";
  if (rc == CUPTI_SUCCESS) return true;
  c->cuptiGetResultString(rc, &text);
  snprintf(c->message, sizeof c->message, "%s: %s", what, text);
  return false;
}

#define COUNTERS_PARAMS(type, name, ...) type name = {.structSize = type##_STRUCT_SIZE, __VA_ARGS__}
#define COUNTERS_CALL(c, function, ...) counters_ok(c, (c)->function(__VA_ARGS__), #function)

static inline bool counters_library(struct counters *c) {
#define COUNTERS_FUNCTION(name) {#name, (void **)(void *)&c->name},
  const struct cupti_function functions[] = {COUNTERS_FUNCTIONS(COUNTERS_FUNCTION)};
#undef COUNTERS_FUNCTION
  return cupti_open(functions, sizeof functions / sizeof *functions, c->message, sizeof c->message);
}

static inline bool counters_host(struct counters *c) {
  COUNTERS_PARAMS(CUpti_Profiler_Initialize_Params, init);
  COUNTERS_PARAMS(CUpti_Device_GetChipName_Params, chip);
  COUNTERS_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, available);
  if (!COUNTERS_CALL(c, cuptiProfilerInitialize, &init) ||
      !COUNTERS_CALL(c, cuptiDeviceGetChipName, &chip) ||
      !COUNTERS_CALL(c, cuptiProfilerGetCounterAvailability, &available))
    return false;
  c->available = available.pCounterAvailabilityImage =
      malloc(available.counterAvailabilityImageSize);
  COUNTERS_PARAMS(CUpti_Profiler_Host_Initialize_Params, host,
                  .profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER, .pChipName = chip.pChipName,
                  .pCounterAvailabilityImage = available.pCounterAvailabilityImage);
  if (!COUNTERS_CALL(c, cuptiProfilerGetCounterAvailability, &available) ||
      !COUNTERS_CALL(c, cuptiProfilerHostInitialize, &host))
    return false;
  c->host = host.pHostObject;
  COUNTERS_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add, .pHostObject = c->host,
                  .ppMetricNames = counters_metrics, .numMetrics = 2);
  COUNTERS_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size, .pHostObject = c->host);
  if (!COUNTERS_CALL(c, cuptiProfilerHostConfigAddMetrics, &add) ||
      !COUNTERS_CALL(c, cuptiProfilerHostGetConfigImageSize, &size))
    return false;
  c->config_bytes = size.configImageSize, c->config = malloc(c->config_bytes);
  COUNTERS_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image, .pHostObject = c->host,
                  .configImageSize = c->config_bytes, .pConfigImage = c->config);
  return COUNTERS_CALL(c, cuptiProfilerHostGetConfigImage, &image);
}

static inline void counters_close(struct counters *c) {
  COUNTERS_PARAMS(CUpti_RangeProfiler_Disable_Params, disable, .pRangeProfilerObject = c->ranges);
  COUNTERS_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, deinit, .pHostObject = c->host);
  if (c->ranges) c->cuptiRangeProfilerDisable(&disable);
  if (c->host) c->cuptiProfilerHostDeinitialize(&deinit);
  free(c->config), free(c->data), free(c->available);
  c->ranges = NULL, c->host = NULL, c->config = c->data = c->available = NULL;
}

static inline CUcontext counters_context(void) {
  CUcontext context = NULL;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  CUresult (*current)(CUcontext *) = NULL;
  if (driver) *(void **)(void *)&current = dlsym(driver, "cuCtxGetCurrent");
  if (current) (void)current(&context);
  return context;
}

// Of the current context. False: c->message says why (no library, no privilege, somebody else has
// the counters).
static inline bool counters_open(struct counters *c) {
  *c = (struct counters){0};
  if (!counters_library(c) || !counters_host(c)) return false;
  COUNTERS_PARAMS(CUpti_RangeProfiler_Enable_Params, enable, .ctx = counters_context());
  if (!COUNTERS_CALL(c, cuptiRangeProfilerEnable, &enable)) return false;
  c->ranges = enable.pRangeProfilerObject;
  COUNTERS_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size,
                  .pRangeProfilerObject = c->ranges, .pMetricNames = counters_metrics,
                  .numMetrics = 2, .maxNumOfRanges = COUNTERS_RANGES,
                  .maxNumRangeTreeNodes = COUNTERS_RANGES);
  if (!COUNTERS_CALL(c, cuptiRangeProfilerGetCounterDataSize, &size)) return false;
  c->data_bytes = size.counterDataSize, c->data = malloc(c->data_bytes);
  return c->data != NULL;
}

static inline bool counters_start(struct counters *c) {
  COUNTERS_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, clear,
                  .pRangeProfilerObject = c->ranges, .counterDataSize = c->data_bytes,
                  .pCounterData = c->data);
  COUNTERS_PARAMS(CUpti_RangeProfiler_SetConfig_Params, set, .pRangeProfilerObject = c->ranges,
                  .configSize = c->config_bytes, .pConfig = c->config,
                  .counterDataImageSize = c->data_bytes, .pCounterDataImage = c->data,
                  .range = CUPTI_UserRange, .replayMode = CUPTI_UserReplay,
                  .maxRangesPerPass = COUNTERS_RANGES, .numNestingLevels = 1, .minNestingLevel = 1);
  COUNTERS_PARAMS(CUpti_RangeProfiler_Start_Params, start, .pRangeProfilerObject = c->ranges);
  c->n_ranges = 0;
  return COUNTERS_CALL(c, cuptiRangeProfilerCounterDataImageInitialize, &clear) &&
         COUNTERS_CALL(c, cuptiRangeProfilerSetConfig, &set) &&
         COUNTERS_CALL(c, cuptiRangeProfilerStart, &start);
}

static inline bool counters_begin(struct counters *c) {
  char name[16];
  snprintf(name, sizeof name, "%d", c->n_ranges);
  COUNTERS_PARAMS(CUpti_RangeProfiler_PushRange_Params, push, .pRangeProfilerObject = c->ranges,
                  .pRangeName = name);
  return COUNTERS_CALL(c, cuptiRangeProfilerPushRange, &push);
}

static inline bool counters_end(struct counters *c) {
  COUNTERS_PARAMS(CUpti_RangeProfiler_PopRange_Params, pop, .pRangeProfilerObject = c->ranges);
  c->n_ranges++;
  return COUNTERS_CALL(c, cuptiRangeProfilerPopRange, &pop);
}

// Where each range lies in the data, by the number that is its name.
static inline bool counters_find(struct counters *c) {
  COUNTERS_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info, .pCounterDataImage = c->data,
                  .counterDataImageSize = c->data_bytes);
  int found = 0;
  if (!COUNTERS_CALL(c, cuptiRangeProfilerGetCounterDataInfo, &info)) return false;
  for (size_t i = 0; i < info.numTotalRanges; i++) {
    COUNTERS_PARAMS(CUpti_RangeProfiler_CounterData_GetRangeInfo_Params, range,
                    .pCounterDataImage = c->data, .counterDataImageSize = c->data_bytes,
                    .rangeIndex = i, .rangeDelimiter = "/");
    if (!COUNTERS_CALL(c, cuptiRangeProfilerCounterDataGetRangeInfo, &range)) return false;
    int n = atoi(range.rangeName);
    if (n >= 0 && n < c->n_ranges) c->read_at[n] = (int)i, found++;
  }
  snprintf(c->message, sizeof c->message, "%d ranges found of %d", found, c->n_ranges);
  return found == c->n_ranges;
}

static inline bool counters_stop(struct counters *c) {
  COUNTERS_PARAMS(CUpti_RangeProfiler_Stop_Params, stop, .pRangeProfilerObject = c->ranges);
  COUNTERS_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode, .pRangeProfilerObject = c->ranges);
  if (!COUNTERS_CALL(c, cuptiRangeProfilerStop, &stop)) return false;
  if (!stop.isAllPassSubmitted) {
    snprintf(c->message, sizeof c->message, "the two counters do not fit in one pass");
    return false;
  }
  return COUNTERS_CALL(c, cuptiRangeProfilerDecodeData, &decode) && counters_find(c);
}

// Bytes of one range.
static inline bool counters_read(struct counters *c, int range, double *read, double *write) {
  double values[2] = {0};
  COUNTERS_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, evaluate, .pHostObject = c->host,
                  .pCounterDataImage = c->data, .counterDataImageSize = c->data_bytes,
                  .rangeIndex = (size_t)c->read_at[range], .ppMetricNames = counters_metrics,
                  .numMetrics = 2, .pMetricValues = values);
  if (!COUNTERS_CALL(c, cuptiProfilerHostEvaluateToGpuValues, &evaluate)) return false;
  *read = values[0], *write = values[1];
  return true;
}

#endif
