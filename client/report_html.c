#include "client/report.h"
enum status report_html(struct report *report, const char *path, struct error *err) {
  (void)report;
  return error_set(err, STATUS_UNIMPLEMENTED, "%s", path);
}
