// What the Audit RPC answered, for people and for programs. Texts of the server are tamed on the
// way: no control characters reach a terminal.
#ifndef CLIENT_AUDIT_PRINT_H
#define CLIENT_AUDIT_PRINT_H

#include "base/slab.h"
#include "base/status.h"
#include "fusewire.pb-c.h"

#define AUDIT_SCHEMA "fusewire.audit/1"

// Both malloc'd: free with file_free. RESOURCE_EXHAUSTED: no memory.
MUST_USE enum status audit_text(const Fusewire__V1__AuditResponse *reply, struct slice *out,
                                struct error *err);
// One object: `schema`, then every field of the message by its name in fusewire.proto.
MUST_USE enum status audit_json(const Fusewire__V1__AuditResponse *reply, struct slice *out,
                                struct error *err);

#endif
