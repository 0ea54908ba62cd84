// What the handler files share: their prototypes (from methods.def) and the small helpers of cold
// methods.
#ifndef API_HANDLERS_H
#define API_HANDLERS_H

#include "api/api.h"
#include "rpc/wire.h"

#include <protobuf-c/protobuf-c.h>

#define METHOD(service, name, handler) void handler(struct call *call, void *app);
#define STREAM(service, name, handler)                                                             \
  void handler(struct call *call, void *app);                                                      \
  extern const struct method_stream handler##_stream;
#include "api/methods.def"
#undef METHOD
#undef STREAM

// Names in messages: at most so many bytes of what a client sent. Use with "%.*s".
#define TEXT_SHOWN 64
#define TEXT_ARGS(slice)                                                                           \
  (int)((slice).bytes < TEXT_SHOWN ? (slice).bytes : TEXT_SHOWN), (const char *)(slice).data

// Packs `message` with protobuf-c and answers OK. For replies of cold methods.
void reply_message(struct call *call, const ProtobufCMessage *message);
// The model of that name and version, or NULL with UNAVAILABLE (loading) or NOT_FOUND and a
// message.
struct model *model_find(struct api *api, struct slice name, struct slice version,
                         enum status *status, struct error *err);
// RepositoryModelLoad and Unload: answers the jobs that came back.
void repository_answer(struct api *api, struct rpc *rpc, int loop);
void repository_close(struct api_loop *loop);
// Explain: answers the calls whose documents came back.
void explain_answer(struct api *api, struct rpc *rpc, int loop);
void explain_close(struct api_loop *loop);
// Health Watch: tells the loop's watchers what has changed for them.
void health_push(struct api *api, struct rpc *rpc, int loop);
// "FP32" and so on: the protocol's words for our dtypes.
const char *datatype_name(enum dtype dtype);

#endif
