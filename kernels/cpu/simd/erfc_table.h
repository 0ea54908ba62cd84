// exp(a^2) erfc(a) for a in [0, 13.5] as a polynomial in t = 1/(1 + ERFCX_C a): relative error 1.0e-07 (weighted
// least squares with Lawson's reweighting, i.e. close to minimax).
#ifndef KERNELS_CPU_SIMD_ERFC_TABLE_H
#define KERNELS_CPU_SIMD_ERFC_TABLE_H

#define ERFCX_C 0.42
#define ERFCX_DEGREE 8
static const float erfcx_coefficient[ERFCX_DEGREE + 1] = {
    1.6744157874e-05f, 2.3651119330e-01f, 2.4203586266e-01f, 1.8424342502e-01f, 2.9557921181e-01f,
    -1.7268553719e-01f, 4.8044568544e-01f, -3.4090929058e-01f, 7.4762605038e-02f};

#endif
