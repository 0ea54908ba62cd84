// Run-time compilation with a cache of finished cubins on disk.
//
// Cache file: magic, payload bytes, SHA-256 of the payload, payload. Written under a temporary name
// in the same folder and renamed, so that a reader sees a whole file or none; anything that does
// not check out is rebuilt over.
#include "kernels/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_BYTES 32
#define CUBIN_BYTES_MAX (64u << 20)
static const char magic[8] = "FWCUBIN1";
static const char *const compile_options[] = {"--std=c++17", "--fmad=true", "--prec-div=true",
                                              "--prec-sqrt=true", "--ftz=false"};
#define N_OPTIONS (sizeof compile_options / sizeof *compile_options)

struct nvrtc {
  int (*version)(int *major, int *minor);
  int (*create)(void **prog, const char *src, const char *name, int n, const char *const *headers,
                const char *const *names);
  int (*compile)(void *prog, int n, const char *const *options);
  int (*log_size)(void *prog, size_t *bytes);
  int (*log)(void *prog, char *out);
  int (*cubin_size)(void *prog, size_t *bytes);
  int (*cubin)(void *prog, char *out);
  int (*destroy)(void **prog);
};

struct jit {
  void *library;
  struct nvrtc rtc;
  int major, minor;
  char cache_dir[512]; // empty: none
};

struct cache_header {
  char magic[8];
  uint64_t bytes;
  uint8_t hash[HASH_BYTES];
};

__attribute__((format(printf, 2, 3))) static int fail(char *message, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, JIT_MESSAGE_BYTES, format, args);
  va_end(args);
  return -1;
}

static bool resolve(void *library, const char *name, void *slot) {
  void *symbol = dlsym(library, name);
  memcpy(slot, &symbol, sizeof symbol); // ISO C has no cast from object to function pointer
  return symbol != NULL;
}

static bool resolve_all(void *lib, struct nvrtc *rtc) {
  return resolve(lib, "nvrtcVersion", &rtc->version) &&
         resolve(lib, "nvrtcCreateProgram", &rtc->create) &&
         resolve(lib, "nvrtcCompileProgram", &rtc->compile) &&
         resolve(lib, "nvrtcGetProgramLogSize", &rtc->log_size) &&
         resolve(lib, "nvrtcGetProgramLog", &rtc->log) &&
         resolve(lib, "nvrtcGetCUBINSize", &rtc->cubin_size) &&
         resolve(lib, "nvrtcGetCUBIN", &rtc->cubin) &&
         resolve(lib, "nvrtcDestroyProgram", &rtc->destroy);
}

// `path` and the folders that it lies in: ~/.cache may be new as well.
static bool make_folders(char *path) {
  for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
    *slash = '\0';
    (void)mkdir(path, 0700); // what matters is whether the last is there
    *slash = '/';
  }
  return mkdir(path, 0700) == 0 || errno == EEXIST;
}

int jit_open(const struct jit_options *options, struct jit **out, char message[JIT_MESSAGE_BYTES]) {
  static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                      "/usr/local/cuda/lib64/libnvrtc.so"};
  *out = NULL;
  struct jit *jit = calloc(1, sizeof *jit);
  if (!jit) return fail(message, "out of memory");
  for (size_t i = 0; i < sizeof names / sizeof *names && !jit->library; i++) {
    jit->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  }
  if (!jit->library || !resolve_all(jit->library, &jit->rtc) ||
      jit->rtc.version(&jit->major, &jit->minor) != 0) {
    fail(message, "NVRTC (libnvrtc.so.13 or .12) cannot be opened: %s",
         jit->library ? "symbols missing" : dlerror());
    jit_close(jit);
    return -1;
  }
  if (options->cache_dir && options->cache_dir[0]) {
    if (strlen(options->cache_dir) >= sizeof jit->cache_dir - 128) {
      jit_close(jit);
      return fail(message, "cache path is too long: %s", options->cache_dir);
    }
    memcpy(jit->cache_dir, options->cache_dir, strlen(options->cache_dir) + 1);
    if (!make_folders(jit->cache_dir)) jit->cache_dir[0] = '\0'; // go on without
  }
  *out = jit;
  return 0;
}

void jit_close(struct jit *jit) {
  if (!jit) return;
  if (jit->library) dlclose(jit->library);
  free(jit);
}

void cubin_free(struct cubin *cubin) {
  free(cubin->data);
  *cubin = (struct cubin){0};
}

// ---- cache -------------------------------------------------------------------------------------

static bool hash_bytes(const void *data, size_t bytes, uint8_t out[HASH_BYTES]) {
  unsigned n = 0;
  return EVP_Digest(data, bytes, out, &n, EVP_sha256(), NULL) == 1 && n == HASH_BYTES;
}

static bool cache_path(const struct jit *jit, const char *source, const char *arch,
                       char path[768]) {
  uint8_t hash[HASH_BYTES];
  char version[32];
  unsigned n = 0;
  if (!jit->cache_dir[0]) return false;
  EVP_MD_CTX *ctx = EVP_MD_CTX_new();
  if (!ctx) return false;
  snprintf(version, sizeof version, "nvrtc %d.%d", jit->major, jit->minor);
  bool ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
  // every part goes in with its NUL, so that no two lists of parts run together
  ok = ok && EVP_DigestUpdate(ctx, source, strlen(source) + 1) == 1;
  ok = ok && EVP_DigestUpdate(ctx, arch, strlen(arch) + 1) == 1;
  ok = ok && EVP_DigestUpdate(ctx, version, strlen(version) + 1) == 1;
  for (size_t i = 0; i < N_OPTIONS; i++) {
    ok = ok && EVP_DigestUpdate(ctx, compile_options[i], strlen(compile_options[i]) + 1) == 1;
  }
  ok = ok && EVP_DigestFinal_ex(ctx, hash, &n) == 1;
  EVP_MD_CTX_free(ctx);
  int at = snprintf(path, 768, "%s/", jit->cache_dir);
  for (int i = 0; i < HASH_BYTES; i++)
    at += snprintf(path + at, 768 - (size_t)at, "%02x", hash[i]);
  snprintf(path + at, 768 - (size_t)at, ".cubin");
  return ok;
}

static bool cache_read(const char *path, struct cubin *out) {
  struct cache_header header;
  uint8_t hash[HASH_BYTES];
  bool ok = false;
  FILE *file = fopen(path, "rb");
  if (!file) return false;
  if (fread(&header, sizeof header, 1, file) == 1 &&
      memcmp(header.magic, magic, sizeof magic) == 0 && header.bytes > 0 &&
      header.bytes <= CUBIN_BYTES_MAX) {
    out->data = malloc(header.bytes);
    out->bytes = header.bytes;
    ok = out->data && fread(out->data, header.bytes, 1, file) == 1 && fgetc(file) == EOF &&
         hash_bytes(out->data, out->bytes, hash) && memcmp(hash, header.hash, HASH_BYTES) == 0;
  }
  fclose(file);
  out->cached = ok;
  if (!ok) cubin_free(out);
  return ok;
}

static void cache_write(const char *path, const struct cubin *cubin) {
  char temporary[800];
  struct cache_header header = {.bytes = cubin->bytes};
  memcpy(header.magic, magic, sizeof magic);
  if (!hash_bytes(cubin->data, cubin->bytes, header.hash)) return;
  snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
  int fd = mkstemp(temporary);
  if (fd < 0) return;
  FILE *file = fdopen(fd, "wb");
  if (!file) {
    close(fd);
    unlink(temporary);
    return;
  }
  bool ok = fwrite(&header, sizeof header, 1, file) == 1 &&
            fwrite(cubin->data, cubin->bytes, 1, file) == 1;
  ok = fclose(file) == 0 && ok;
  if (!ok || rename(temporary, path) != 0) unlink(temporary);
}

// ---- compile -----------------------------------------------------------------------------------

static int report_log(const struct nvrtc *rtc, void *prog, char *message) {
  size_t bytes = 0;
  char *log = NULL;
  if (rtc->log_size(prog, &bytes) == 0 && bytes > 0 && (log = malloc(bytes + 1)) != NULL) {
    log[0] = log[bytes] = '\0';
    rtc->log(prog, log);
  }
  fail(message, "NVRTC refused a generated kernel: %s", log ? log : "no log");
  free(log);
  return -1;
}

static int compile(const struct jit *jit, const char *source, const char *arch, struct cubin *out,
                   char *message) {
  const struct nvrtc *rtc = &jit->rtc;
  const char *options[N_OPTIONS + 1];
  char arch_option[64];
  void *prog = NULL;
  int rc = -1;
  snprintf(arch_option, sizeof arch_option, "--gpu-architecture=%s", arch);
  memcpy(options, compile_options, sizeof compile_options);
  options[N_OPTIONS] = arch_option;
  if (rtc->create(&prog, source, "row.cu", 0, NULL, NULL) != 0)
    return fail(message, "NVRTC cannot start");
  if (rtc->compile(prog, N_OPTIONS + 1, options) != 0) {
    report_log(rtc, prog, message);
    goto out;
  }
  if (rtc->cubin_size(prog, &out->bytes) != 0 || out->bytes == 0 || out->bytes > CUBIN_BYTES_MAX) {
    fail(message, "NVRTC made no cubin for %s", arch);
    goto out;
  }
  out->data = malloc(out->bytes);
  if (!out->data || rtc->cubin(prog, out->data) != 0) {
    cubin_free(out);
    fail(message, "NVRTC's cubin could not be fetched");
    goto out;
  }
  rc = 0;
out:
  rtc->destroy(&prog);
  return rc;
}

int jit_compile(struct jit *jit, const char *source, const char *arch, struct cubin *out,
                char message[JIT_MESSAGE_BYTES]) {
  char path[768];
  *out = (struct cubin){0};
  bool cache = cache_path(jit, source, arch, path);
  if (cache && cache_read(path, out)) return 0;
  if (compile(jit, source, arch, out, message) != 0) return -1;
  if (cache) cache_write(path, out);
  return 0;
}
