// Runs a fuzz target over files instead of generated input: replay FILE|FOLDER...
//
// Every input is handed over twice: from an allocation of exactly its size (so that a sanitizer
// sees the first byte past the end), and cut to half its length, which costs nothing and finds
// missing length checks.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int n_inputs;

static void run_copy(const uint8_t *data, size_t size) {
  uint8_t *exact = malloc(size ? size : 1);
  if (!exact) abort();
  memcpy(exact, data, size);
  LLVMFuzzerTestOneInput(exact, size);
  free(exact);
}

static int replay_file(const char *path, size_t size) {
  uint8_t *data = malloc(size + 1);
  FILE *file = fopen(path, "rb");
  if (!data || !file || fread(data, 1, size, file) != size) {
    fprintf(stderr, "cannot read %s\n", path);
    free(data);
    if (file) fclose(file);
    return 1;
  }
  fclose(file);
  // Printed first: an input that ends the process is the last line.
  printf("%s (%zu bytes)\n", path, size);
  fflush(stdout);
  run_copy(data, size);
  run_copy(data, size / 2);
  free(data);
  n_inputs++;
  return 0;
}

static int replay(const char *path) {
  struct stat info;
  if (stat(path, &info)) {
    fprintf(stderr, "no such file: %s\n", path);
    return 1;
  }
  if (!S_ISDIR(info.st_mode)) return replay_file(path, (size_t)info.st_size);
  DIR *folder = opendir(path);
  if (!folder) return 1;
  int failed = 0;
  struct dirent *entry;
  while (!failed && (entry = readdir(folder))) {
    char child[4096];
    if (entry->d_name[0] == '.') continue;
    int length = snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
    failed = length < 0 || (size_t)length >= sizeof child || replay(child);
  }
  closedir(folder);
  return failed;
}

int main(int argc, char **argv) {
  uint8_t none = 0;
  LLVMFuzzerTestOneInput(&none, 0);
  for (int i = 1; i < argc; i++)
    if (replay(argv[i])) return 1;
  printf("%d inputs replayed\n", n_inputs);
  return n_inputs ? 0 : 1; // an empty corpus tests nothing
}
