#include "obs/process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

// Fields of /proc/self/stat after the process name, which may hold spaces and brackets.
static bool stat_read(unsigned long long *start_ticks, long *threads) {
  char line[1024];
  FILE *file = fopen("/proc/self/stat", "re");
  if (!file) return false;
  size_t n = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[n] = 0;
  const char *rest = strrchr(line, ')');
  return rest &&
         sscanf(rest + 2,
                "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                threads, start_ticks) == 2;
}

static double resident_bytes(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (!file) return 0;
  if (fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
  fclose(file);
  return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

int process_open_fds(void) {
  DIR *dir = opendir("/proc/self/fd");
  if (!dir) return 0;
  int n = -3; // ".", ".." and the directory itself
  while (readdir(dir))
    n++;
  closedir(dir);
  return n;
}

static double start_time(unsigned long long start_ticks) {
  struct timespec wall, boot;
  clock_gettime(CLOCK_REALTIME, &wall);
  clock_gettime(CLOCK_BOOTTIME, &boot);
  double booted =
      (double)(wall.tv_sec - boot.tv_sec) + 1e-9 * (double)(wall.tv_nsec - boot.tv_nsec);
  return booted + (double)start_ticks / (double)sysconf(_SC_CLK_TCK);
}

static void single(struct expo *expo, const char *name, const char *type, const char *help,
                   double value) {
  expo_family(expo, name, type, help);
  expo_text(expo, "%s %.15g\n", name, value);
}

void process_families(struct expo *expo) {
  struct rusage usage = {0};
  getrusage(RUSAGE_SELF, &usage);
  double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  struct rlimit files = {0};
  getrlimit(RLIMIT_NOFILE, &files);
  single(expo, "process_cpu_seconds_total", "counter", "User and system time used.", cpu);
  double resident = resident_bytes(), most = 1024.0 * (double)usage.ru_maxrss;
  single(expo, "process_resident_memory_bytes", "gauge", "Resident memory.", resident);
  single(expo, "process_resident_memory_max_bytes", "gauge", "Largest resident memory so far.",
         most > resident ? most : resident); // the kernel's own maximum lags behind
  single(expo, "process_open_fds", "gauge", "Open file descriptors.", process_open_fds());
  single(expo, "process_max_fds", "gauge", "Limit of open file descriptors.",
         (double)files.rlim_cur);
  unsigned long long ticks;
  long threads;
  if (!stat_read(&ticks, &threads)) return;
  single(expo, "process_threads", "gauge", "Threads.", (double)threads);
  single(expo, "process_start_time_seconds", "gauge", "Start, in seconds since the epoch.",
         start_time(ticks));
}
