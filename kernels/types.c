// Conversions and names of kernels/types.h.
#include "kernels/types.h"

#include <string.h>

size_t dtype_bytes(enum dtype dtype) {
  static const uint8_t bytes[DTYPE_COUNT] = {0, 4, 2, 2, 8, 4};
  return dtype < DTYPE_COUNT ? bytes[dtype] : 0;
}

const char *dtype_name(enum dtype dtype) {
  static const char *const names[DTYPE_COUNT] = {"invalid", "fp32",  "fp16",
                                                 "bf16",    "int64", "int32"};
  return dtype < DTYPE_COUNT ? names[dtype] : "invalid";
}

const char *activation_name(enum activation act) {
  static const char *const names[ACT_COUNT] = {"none", "gelu", "gelu_tanh", "relu",
                                               "silu", "tanh", "sigmoid"};
  return act < ACT_COUNT ? names[act] : "invalid";
}

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

float bf16_to_f32(uint16_t bits) {
  return bits_float((uint32_t)bits << 16);
}

uint16_t f32_to_bf16(float value) {
  uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)((bits >> 16) | 0x40); // quiet NaN, payload's top kept
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu,
           mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  float magnitude = (float)mantissa * 0x1p-24f; // zero and subnormals, exact
  return bits_float(sign | float_bits(magnitude));
}

uint16_t f32_to_f16(float value) {
  uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // rounds to infinity (>= 65520)
  if (magnitude < 0x38800000u) {                 // subnormal or zero: let the FPU round
    float scaled = bits_float(magnitude) + 0.5f; // ulp of [0.5, 1) is 2^-24, fp16's smallest step
    return (uint16_t)(sign | (uint16_t)(float_bits(scaled) - 0x3f000000u));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return (uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}
