// Activations on the fp32 accumulator, for the ahead-of-time kernels (nvcc) and the generated ones
// (NVRTC) alike: no header is needed, and this text is embedded as it stands.
//
// Two grades. `fast` for outputs of 16 bits: no branch, one or two special-function instructions.
// `exact` for fp32. Forms are those that do not cancel in the tails, keep NaN, and have the right
// limits at +-inf.
#ifndef COMMON_ACT_CUH
#define COMMON_ACT_CUH

#define FW_LOG2E 1.4426950408889634f

static __device__ __forceinline__ float fw_ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

static __device__ __forceinline__ float fw_rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// exp(x) to about 2^-21 of its value for x <= 0 where 16-bit results can tell.
static __device__ __forceinline__ float fw_exp_fast(float x) {
  return fw_ex2(FW_LOG2E * x);
}

// max that returns NaN when either side is NaN (fmaxf would swallow it).
static __device__ __forceinline__ float fw_max(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// gelu(x) = max(x, 0) - |x| Phi(-|x|). log2 Phi(-a) is smooth, so it is a polynomial q(a) and
// Phi(-a) = 2^q(a): one special-function instruction where erfc by reciprocal and exponential takes
// two, and no cancellation on either side. Fitted to math.erfc in double, weighted for the relative
// error of Phi that an output can show:
//   DEGREE 5, bf16: 2.4e-4 up to a = 3, growing to 8e-3 at 6, where a Phi is 6e-9;
//   DEGREE 6, fp16: 1.3e-5 up to a = 3, growing to 3e-4 at 5.8, where a Phi is below fp16's least
//   number.
// That is less than a tenth of what rounding to the output costs. Beyond 10 or 5.8 a stays where it
// is: the result is a constant too small to see.
template <int DEGREE> static __device__ __forceinline__ float fw_gelu_erf_fast(float x) {
  const float a = fminf(fabsf(x), DEGREE == 5 ? 10.0f : DEGREE == 6 ? 5.8f : 13.3f);
  float q;
  if (DEGREE == 5) {
    q = -0.00023809197591617703f;
    q = fmaf(q, a, 0.005020557437092066f);
    q = fmaf(q, a, -0.045538634061813354f);
    q = fmaf(q, a, -0.4677460193634033f);
    q = fmaf(q, a, -1.1474943161010742f);
    q = fmaf(q, a, -1.0002437829971313f);
  } else if (DEGREE == 6) {
    q = 2.957103424705565e-05f;
    q = fmaf(q, a, -0.0007138996734283864f);
    q = fmaf(q, a, 0.007789588067680597f);
    q = fmaf(q, a, -0.052745088934898376f);
    q = fmaf(q, a, -0.4594462215900421f);
    q = fmaf(q, a, -1.1509467363357544f);
    q = fmaf(q, a, -1.0000120401382446f);
  } else {
    q = -1.8800030421317615e-09f;
    q = fmaf(q, a, 1.378949860963985e-07f);
    q = fmaf(q, a, -4.4457815420173574e-06f);
    q = fmaf(q, a, 8.338921907125041e-05f);
    q = fmaf(q, a, -0.001018864568322897f);
    q = fmaf(q, a, 0.008657238446176052f);
    q = fmaf(q, a, -0.05393112450838089f);
    q = fmaf(q, a, -0.4588252007961273f);
    q = fmaf(q, a, -1.1509639024734497f);
    q = fmaf(q, a, -1.000031590461731f);
  }
  return fmaf(-a, fw_ex2(q), fw_max(x, 0.0f));
}

// x * sigmoid(s x): silu with s = 1. The clamp turns -inf * 0 into -0 and leaves NaN alone.
static __device__ __forceinline__ float fw_gate_fast(float x, float exponent) {
  return fw_max(x, -1e30f) * fw_rcp(1.0f + fw_ex2(exponent));
}

// x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
static __device__ __forceinline__ float fw_gelu_tanh_fast(float x) {
  const float c = -2.0f * 0.7978845608028654f * FW_LOG2E;
  return fw_gate_fast(x, x * fmaf(c * 0.044715f, x * x, c));
}

static __device__ __forceinline__ float fw_silu_fast(float x) {
  return fw_gate_fast(x, -FW_LOG2E * x);
}

static __device__ __forceinline__ float fw_sigmoid_fast(float x) {
  return fw_rcp(1.0f + fw_ex2(-FW_LOG2E * x));
}

static __device__ __forceinline__ float fw_gelu_erf_exact(float x) {
  const float y = fw_max(x, -40.0f);
  return 0.5f * y * erfcf(-0.7071067811865476f * y);
}

static __device__ __forceinline__ float fw_sigmoid_exact(float x) {
  return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float fw_silu_exact(float x) {
  return fw_max(x, -1e30f) * fw_sigmoid_exact(x);
}

static __device__ __forceinline__ float fw_gelu_tanh_exact(float x) {
  const float y = fw_max(x, -1e10f); // its cube stays finite
  return y * fw_sigmoid_exact(1.5957691216057308f * y * (1.0f + 0.044715f * y * y));
}

#endif
