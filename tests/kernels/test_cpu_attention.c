// Attention on the CPU, fused and in four steps, against the double reference.
#include "kernels/cpu/attention.h"

#include "cpu_test.h"

struct packed {
  int32_t cu[8], n;
  int64_t offsets[8];
  struct batch_geometry geometry;
};

static void pack(struct packed *p, const int32_t *lengths, int32_t n) {
  *p = (struct packed){.n = n};
  for (int32_t i = 0; i < n; i++) {
    p->cu[i + 1] = p->cu[i] + lengths[i];
    p->offsets[i + 1] = p->offsets[i] + (int64_t)lengths[i] * lengths[i];
    if (lengths[i] > p->geometry.max_seqlen) p->geometry.max_seqlen = lengths[i];
  }
  p->geometry.n_tokens = p->cu[n], p->geometry.n_seqs = n;
  p->geometry.sum_sq = p->offsets[n];
  p->geometry.cu_seqlens = p->cu, p->geometry.scores_offset = p->offsets;
}

struct tensors {
  struct matrix qkv, o;
  void *scores;
  float *scratch;
};

typedef void (*kernel)(const struct attention_call *call);

static void run_pieces(kernel run, const struct attention_problem *problem, const struct packed *p,
                       const struct tensors *t) {
  size_t element = dtype_bytes(problem->dtype);
  int32_t q_cols = problem->heads * problem->head_dim,
          kv_cols = problem->kv_heads * problem->head_dim;
  for (int32_t s = 0; s < p->n; s++) {
    int32_t length = p->cu[s + 1] - p->cu[s];
    for (int32_t h = 0; h < problem->heads; h++)
      for (int32_t first = 0; first < length; first += ATTENTION_QUERIES) {
        struct attention_call call = {.problem = problem,
                                      .geometry = &p->geometry,
                                      .o = t->o.view,
                                      .scores = t->scores,
                                      .seq = s,
                                      .head = h,
                                      .first = first,
                                      .scratch = t->scratch};
        call.count = length - first < ATTENTION_QUERIES ? length - first : ATTENTION_QUERIES;
        call.q = call.k = call.v = t->qkv.view; // slices of one wider buffer
        call.k.data = (char *)call.k.data + (size_t)q_cols * element;
        call.v.data = (char *)call.v.data + (size_t)(q_cols + kv_cols) * element;
        run(&call);
      }
  }
}

static double *columns(const struct matrix *m, int32_t first, int32_t n) {
  double *out = malloc((size_t)(m->rows * n) * sizeof *out);
  for (int64_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < n; c++)
      out[r * n + c] = (double)matrix_at(m, r, first + c);
  return out;
}

static double *reference(const struct attention_problem *problem, const struct packed *p,
                         const struct tensors *t) {
  int32_t q_cols = problem->heads * problem->head_dim,
          kv_cols = problem->kv_heads * problem->head_dim;
  double *q = columns(&t->qkv, 0, q_cols), *k = columns(&t->qkv, q_cols, kv_cols),
         *v = columns(&t->qkv, q_cols + kv_cols, kv_cols);
  double *o = calloc((size_t)p->cu[p->n] * (size_t)q_cols, sizeof *o);
  double *work = malloc((size_t)p->geometry.max_seqlen * sizeof *work);
  ref_attention(o, q, k, v, problem, &p->geometry, work);
  free(q), free(k), free(v), free(work);
  return o;
}

static struct tensors make(const struct attention_problem *problem, const struct packed *p) {
  int32_t q_cols = problem->heads * problem->head_dim,
          all = q_cols + 2 * problem->kv_heads * problem->head_dim;
  struct tensors t = {.qkv = matrix_random(p->cu[p->n], all, all + 5, problem->dtype),
                      .o = matrix_make(p->cu[p->n], q_cols, q_cols + 3, problem->dtype)};
  t.scores = malloc((size_t)(problem->heads * p->offsets[p->n]) * sizeof(float));
  size_t bytes = attention_scratch_bytes(problem);
  t.scratch = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
  memset(t.scratch, 0xff, bytes);
  return t;
}

static void tensors_free(struct tensors *t) {
  matrix_free(&t->qkv), matrix_free(&t->o);
  free(t->scores), free(t->scratch);
}

static void check(const struct attention_problem *problem, const struct packed *p,
                  const struct cpu_ops *ops, struct tensors *t) {
  double *want = reference(problem, p, t);
  for (int fused = 0; fused < 2; fused++) {
    if (fused) {
      run_pieces(ops->attention_run, problem, p, t);
    } else {
      run_pieces(ops->scores_run, problem, p, t);
      run_pieces(ops->scale_run, problem, p, t);
      run_pieces(ops->softmax_run, problem, p, t);
      run_pieces(ops->context_run, problem, p, t);
    }
    double distance = matrix_distance(&t->o, want);
    if (!(distance <= bound_of(problem->dtype)) || !matrix_intact(&t->o))
      fail_msg("%s %s %s: heads %d/%d dim %d causal %d: off by %g", cpu_isa_name(ops->isa),
               fused ? "fused" : "unfused", dtype_name(problem->dtype), problem->heads,
               problem->kv_heads, problem->head_dim, problem->causal, distance);
  }
  free(want);
}

static const struct {
  int32_t heads, kv_heads, head_dim;
} shapes[] = {{1, 1, 1},  {2, 1, 5},  {3, 3, 16},  {4, 2, 32}, {2, 2, 64},
              {1, 1, 80}, {2, 1, 33}, {1, 1, 128}, {1, 1, 136}};

static void attention_matches_the_reference(void **state) {
  (void)state;
  static const int32_t lengths[] = {1, 25, 0, 64, 129, 3, 66};
  struct packed p;
  pack(&p, lengths, 7);
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (size_t i = 0; ops && i < sizeof shapes / sizeof shapes[0]; i++)
      for (int variant = 0; variant < 4; variant++) {
        struct attention_problem problem = {shapes[i].heads,
                                            shapes[i].kv_heads,
                                            shapes[i].head_dim,
                                            variant & 1,
                                            1 / sqrtf((float)shapes[i].head_dim),
                                            variant & 2 ? DTYPE_BF16 : DTYPE_F32};
        struct tensors t = make(&problem, &p);
        check(&problem, &p, ops, &t);
        tensors_free(&t);
      }
  }
}

static void long_sequences_use_the_online_softmax(void **state) {
  (void)state;
  static const int32_t lengths[] = {700, 257};
  struct packed p;
  pack(&p, lengths, 2);
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int causal = 0; ops && causal < 2; causal++) {
      struct attention_problem problem = {2, 1, 32, causal, 0.5f, DTYPE_F32};
      struct tensors t = make(&problem, &p);
      for (int64_t r = 0; r < 700; r += 97) // maxima that move from block to block
        for (int c = 64; c < 96; c++)
          ((float *)t.qkv.view.data)[r * t.qkv.view.stride + c] *= 20 + (float)r / 50;
      check(&problem, &p, ops, &t);
      tensors_free(&t);
    }
  }
}

// A NaN key of the first sequence reaches all of that sequence, and nothing of the others; under
// the causal mask only the queries that may see it.
static void a_nan_stays_where_it_may_be_seen(void **state) {
  (void)state;
  static const int32_t lengths[] = {40, 30};
  struct packed p;
  pack(&p, lengths, 2);
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int variant = 0; ops && variant < 4; variant++) {
      bool causal = variant & 1, in_value = variant & 2;
      struct attention_problem problem = {1, 1, 16, causal, 0.25f, DTYPE_F32};
      struct tensors t = make(&problem, &p);
      ((float *)t.qkv.view.data)[33 * t.qkv.view.stride + (in_value ? 32 : 16)] = NAN;
      run_pieces(ops->attention_run, &problem, &p, &t);
      for (int r = 0; r < 70; r++) {
        bool reached = r < 40 && (!causal || r >= 33);
        for (int c = 0; c < 16; c++) {
          bool expected = reached && (!in_value || c == 0);
          if ((bool)isnan(matrix_at(&t.o, r, c)) != expected)
            fail_msg("%s causal %d: row %d column %d", cpu_isa_name(ops->isa), causal, r, c);
        }
      }
      tensors_free(&t);
    }
  }
}

// Scores so far apart that all but one weight vanish, infinite scores, and equal ones.
static void extreme_scores_are_handled(void **state) {
  (void)state;
  static const int32_t lengths[] = {20};
  struct packed p;
  pack(&p, lengths, 1);
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int kind = 0; ops && kind < 3; kind++) {
      struct attention_problem problem = {1, 1, 8, false, 1, DTYPE_F32};
      struct tensors t = make(&problem, &p);
      float *x = t.qkv.view.data;
      for (int64_t r = 0; r < 20; r++)
        for (int c = 0; c < 16; c++) {
          float *at = &x[r * t.qkv.view.stride + c];
          *at = kind == 0          ? *at * 1e3f
                : kind == 1        ? 1
                : c == 0 || c == 8 ? (r == 4 && c == 8 ? -INFINITY : 1)
                                   : 0;
        }
      check(&problem, &p, ops, &t);
      tensors_free(&t);
    }
  }
}

int main(void) {
  test_seed_now();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_matches_the_reference),
      cmocka_unit_test(long_sequences_use_the_online_softmax),
      cmocka_unit_test(a_nan_stays_where_it_may_be_seen),
      cmocka_unit_test(extreme_scores_are_handled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
