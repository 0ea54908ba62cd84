// exp(a^2) erfc(a) for a in [0, 9.4] as a polynomial in t = 1/(1 + ERFCX_C a): relative
// error 2.9e-7 (least squares with Lawson's reweighting, i.e. close to minimax).
#ifndef KERNELS_CPU_SIMD_ERFC_TABLE_H
#define KERNELS_CPU_SIMD_ERFC_TABLE_H

#define ERFCX_C 0.36
#define ERFCX_DEGREE 7
static const float erfcx_coefficient[ERFCX_DEGREE + 1] = {
    1.9235637694e-04f, 1.9945233720e-01f,  2.3253541549e-01f, 5.9230249853e-02f,
    5.1241049872e-01f, -4.3872821341e-01f, 6.0817843261e-01f, -1.7327079255e-01f};

#endif
