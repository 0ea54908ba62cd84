// Writes the kernels of cases.h as C++ for emulation.h, behind the activations (argument: the path
// of kernels/common/act.cuh, whose three instructions of a GPU are written out) and the prelude.
#include "cases.h"

#include <stdio.h>

static const char *const ptx[][2] = {
    {"asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));", "y = exp2f(x);"},
    {"asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));", "y = 1.0f / x;"},
    {"asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(y) : \"f\"(a), \"f\"(b));",
     "y = std::isnan(a) || std::isnan(b) ? NAN : fmaxf(a, b);"}};

static bool print_activations(const char *path) {
  static char text[1 << 16];
  FILE *file = fopen(path, "r");
  if (!file) return false;
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  const char *from = text;
  for (int i = 0; i < 3; i++) { // in the file's order
    const char *at = strstr(from, ptx[i][0]);
    if (!at) return false;
    printf("%.*s%s", (int)(at - from), from, ptx[i][1]);
    from = at + strlen(ptx[i][0]);
  }
  return fputs(from, stdout) >= 0 && !strstr(from, "asm");
}

// The conversions that the prelude has as PTX, behind it, since their types are its.
static const char behind[] =
    "#include \"kernels/codegen/prelude.cuh\"\n"
    "static inline float fw_widen(fw_f16 x) { return f16_to_f32(x.bits); }\n"
    "static inline void fw_narrow(float x, fw_bf16 *y) { y->bits = f32_to_bf16(x); }\n"
    "static inline void fw_narrow(float x, fw_f16 *y) { y->bits = f32_to_f16(x); }\n";

static bool print_kernel(int n) {
  static char text[1 << 18];
  static struct row_ir before_ir, ir;
  struct emulated_case c;
  struct row_tile tile;
  char name[32];
  if (!emulated_case(n, &c, &before_ir, &ir, &tile)) return false;
  snprintf(name, sizeof name, "kernel_%d", n);
  if (row_source(&ir, &tile, name, text, sizeof text) >= sizeof text) return false;
  return fputs(text, stdout) >= 0;
}

int main(int argc, char **argv) {
  printf("#include \"emulation.h\"\n");
  if (argc != 2 || !print_activations(argv[1])) return 1;
  fputs(behind, stdout);
  for (int n = 0; n < EMULATED_CASES; n++)
    if (!print_kernel(n)) return 1;
  printf("void emulated_kernel(int n, const void *args) {\n"
         "  static void (*const kernels[])(fw_row_args) = {\n");
  for (int n = 0; n < EMULATED_CASES; n++)
    printf("    kernel_%d,\n", n);
  printf("  };\n  kernels[n](*(const fw_row_args *)args);\n}\n");
  return 0;
}
