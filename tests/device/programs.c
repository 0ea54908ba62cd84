// Every program that needs a GPU as one file, for packages: device code is most of each, and is the
// same in all. The name it is called by says which one runs (`cuda_test_row`), or else its first
// argument.
#include <stdio.h>
#include <string.h>

#define PROGRAM(name) int name##_main(int argc, char **argv);
#include "programs.def"
#undef PROGRAM

static const struct program {
  const char *name;
  int (*run)(int argc, char **argv);
} programs[] = {
#define PROGRAM(name) {#name, name##_main},
#include "programs.def"
#undef PROGRAM
};
#define N_PROGRAMS (sizeof programs / sizeof *programs)

static const struct program *find(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  for (size_t i = 0; i < N_PROGRAMS; i++)
    if (strcmp(programs[i].name, name) == 0) return &programs[i];
  return NULL;
}

int main(int argc, char **argv) {
  const struct program *program = argc > 0 ? find(argv[0]) : NULL;
  if (!program && argc > 1) {
    program = find(argv[1]);
    argc--, argv++;
  }
  if (program) return program->run(argc, argv);
  for (size_t i = 0; i < N_PROGRAMS; i++)
    printf("%s\n", programs[i].name);
  return 2;
}
