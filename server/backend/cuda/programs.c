#include "backend/cuda/programs.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// The planner's limits keep every program inside the generator's: a node becomes at most six
// operations (a layer norm).
_Static_assert(6 * STEP_MAX_NODES + ROW_MAX_INPUTS + ROW_MAX_OUTPUTS <= ROW_IR_MAX,
               "a group may be larger than the generator takes");

#define COMPILERS_MAX 8 // a program takes 50 to 500 ms of NVRTC when it is not in the cache

struct job {
  const struct step *step; // the first one with this program
  struct row_ir ir, before_ir;
  struct row_tile tiles[ROW_VARIANTS];
  struct cubin cubin;
  bool known; // the generator takes the program
  int rc;
  char message[JIT_MESSAGE_BYTES];
};

struct compilation {
  struct device *device;
  struct job *jobs; // [n]
  int32_t n;
  _Atomic int32_t next;
};

// ---- which programs ----
// The input that a step's program pools of what `before` makes.
static uint8_t made_by(const struct step *step) {
  uint8_t i = 0;
  while (step->in[i].place != PLACE_STEP)
    i++;
  return i;
}

// Byte by byte, which tells 0 from -0. Plans are zeroed before they are filled; were padding to
// differ all the same, one kernel would be made twice.
static bool same_program(const struct row_program *a, const struct row_program *b) {
  return memcmp(a, b, sizeof *a) == 0; // NOLINT(bugprone-suspicious-memory-comparison)
}

static bool same_kernel(const struct step *a, const struct step *b) {
  if (!same_program(&a->row, &b->row)) return false;
  if (a->before.n_insts == 0 || b->before.n_insts == 0)
    return a->before.n_insts == b->before.n_insts;
  return same_program(&a->before, &b->before) && a->before_in == b->before_in &&
         made_by(a) == made_by(b);
}

static int32_t job_of(const struct compilation *c, const struct step *step) {
  for (int32_t i = 0; i < c->n; i++)
    if (same_kernel(c->jobs[i].step, step)) return i;
  return -1;
}

static void collect(const struct plan *plan, struct compilation *c) {
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    if (step->kind == STEP_ROW && job_of(c, step) < 0) c->jobs[c->n++].step = step;
  }
}

// ---- compiling ----
static char *source_of(struct job *job) {
  size_t prelude = strlen(row_prelude), body = row_source_all(&job->ir, job->tiles, NULL, 0);
  char *text = malloc(prelude + body + 1);
  if (!text) return NULL;
  memcpy(text, row_prelude, prelude + 1); // the body begins over its NUL
  row_source_all(&job->ir, job->tiles, text + prelude, body + 1);
  return text;
}

static void compile(struct device *device, struct job *job) {
  const struct step *step = job->step;
  job->known = row_ir_build(&step->row, &job->ir);
  if (job->known && step->before.n_insts > 0)
    job->known = row_ir_build_before(&step->before, step->before_in, made_by(step), &job->before_ir,
                                     &job->ir);
  if (!job->known) return;
  job->ir.clusters = device->sm >= 90;
  char *text = source_of(job);
  job->rc = text ? jit_compile(device->jit, text, device->arch, &job->cubin, job->message) : -1;
  free(text);
}

static void *compile_some(void *arg) {
  struct compilation *c = arg;
  for (;;) {
    int32_t at = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
    if (at >= c->n) return NULL;
    compile(c->device, &c->jobs[at]);
  }
}

static void compile_all(struct compilation *c) {
  pthread_t threads[COMPILERS_MAX];
  int started = 0;
  for (; started < COMPILERS_MAX && started + 1 < c->n; started++)
    if (pthread_create(&threads[started], NULL, compile_some, c) != 0) break;
  compile_some(c);
  for (int i = 0; i < started; i++)
    pthread_join(threads[i], NULL);
}

// ---- loading ----
static enum status load(struct bound_plan *bound, struct job *job, struct error *err) {
  struct device *device = bound->device;
  if (!job->known)
    return error_set(err, STATUS_INTERNAL, "step %s: no kernel can be generated for it",
                     job->step->label);
  if (job->rc != 0)
    return error_set(err, STATUS_INTERNAL, "step %s: %s", job->step->label,
                     job->message[0] ? job->message : "out of memory");
  struct row_kernel *kernel = &bound->kernels[bound->n_kernels];
  int rc = row_kernel_load(&job->step->row, job->tiles, &job->cubin, kernel);
  if (job->step->before.n_insts > 0)
    kernel->before = &job->step->before, kernel->before_in = job->step->before_in;
  if (rc == 0) bound->n_kernels++;
  return cuda_check(device, rc, "loading of a generated kernel", err);
}

static enum status load_all(struct bound_plan *bound, struct compilation *c, struct error *err) {
  bound->kernels = calloc((size_t)c->n + 1, sizeof *bound->kernels);
  if (!bound->kernels)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %d kernels", c->n);
  for (int32_t i = 0; i < c->n; i++) {
    enum status status = load(bound, &c->jobs[i], err);
    if (status != STATUS_OK) return status;
  }
  for (int32_t s = 0; s < bound->plan->n_steps; s++)
    if (bound->plan->steps[s].kind == STEP_ROW)
      bound->steps[s].kernel = &bound->kernels[job_of(c, &bound->plan->steps[s])];
  return STATUS_OK;
}

enum status programs_load(struct bound_plan *bound, struct error *err) {
  struct compilation c = {.device = bound->device};
  c.jobs = calloc((size_t)bound->plan->n_steps + 1, sizeof *c.jobs);
  if (!c.jobs) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for row programs");
  collect(bound->plan, &c);
  enum status status = STATUS_OK;
  if (c.n > 0 && !bound->device->jit)
    status = error_set(err, STATUS_UNAVAILABLE,
                       "NVRTC was not found, and the model's %d row "
                       "programs need it",
                       c.n);
  if (status == STATUS_OK) {
    compile_all(&c);
    status = load_all(bound, &c, err);
  }
  for (int32_t i = 0; i < c.n; i++)
    cubin_free(&c.jobs[i].cubin);
  free(c.jobs);
  return status;
}

void programs_unload(struct bound_plan *bound) {
  for (int32_t i = 0; i < bound->n_kernels; i++)
    row_kernel_unload(&bound->kernels[i]);
  free(bound->kernels);
  bound->kernels = NULL;
  bound->n_kernels = 0;
}
