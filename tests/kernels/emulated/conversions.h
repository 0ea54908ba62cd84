// The conversions that kernels have as PTX, behind the prelude, which has their types.
#ifndef EMULATED_CONVERSIONS_H
#define EMULATED_CONVERSIONS_H

static inline float fw_widen(fw_f16 x) {
  return f16_to_f32(x.bits);
}
static inline void fw_narrow(float x, fw_bf16 *y) {
  y->bits = f32_to_bf16(x);
}
static inline void fw_narrow(float x, fw_f16 *y) {
  y->bits = f32_to_f16(x);
}

#endif
