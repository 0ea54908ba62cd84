// The cold calls of the Open Inference Protocol, gRPC health, the repository extension and our own
// package, waited for, as C structs. Failures carry the call's gRPC status and message. Loop thread
// only.
#ifndef CLIENT_OIP_H
#define CLIENT_OIP_H

#include "client/net.h"
#include "client/tensor.h"

#define OIP_TENSORS 16
#define OIP_VERSIONS 8
#define OIP_TEXT_BYTES 256
#define OIP_PROPERTIES 32
#define OIP_MODELS 256

struct oip_tensor {
  char name[TENSOR_NAME_BYTES];
  enum datatype type;
  int rank;
  int64_t dims[TENSOR_RANK]; // -1: any
};

struct oip_property {
  char key[64], value[OIP_TEXT_BYTES];
};

struct oip_model {
  char name[OIP_TEXT_BYTES], platform[OIP_TEXT_BYTES];
  char versions[OIP_VERSIONS][32];
  int n_versions;
  struct oip_tensor inputs[OIP_TENSORS], outputs[OIP_TENSORS];
  int n_inputs, n_outputs;
  struct oip_property properties[OIP_PROPERTIES];
  int n_properties;
};

struct oip_server {
  char name[OIP_TEXT_BYTES], version[OIP_TEXT_BYTES];
  char extensions[16][64];
  int n_extensions;
};

struct oip_index { // of RepositoryIndex
  struct {
    char name[OIP_TEXT_BYTES], version[32], state[32];
  } models[OIP_MODELS];
  int n_models;
};

MUST_USE enum status oip_server_live(struct net *net, bool *live, struct error *err);
MUST_USE enum status oip_server_ready(struct net *net, bool *ready, struct error *err);
// grpc.health.v1 Check. `serving` is the enum's number: 0 UNKNOWN, 1 SERVING, 2 NOT_SERVING.
MUST_USE enum status oip_health(struct net *net, const char *service, int *serving,
                                struct error *err);
MUST_USE enum status oip_server_metadata(struct net *net, struct oip_server *out,
                                         struct error *err);
MUST_USE enum status oip_model_ready(struct net *net, const char *name, const char *version,
                                     bool *ready, struct error *err);
// INVALID_ARGUMENT when the reply has more tensors or dimensions than this client handles.
MUST_USE enum status oip_model_metadata(struct net *net, const char *name, const char *version,
                                        struct oip_model *out, struct error *err);
const char *oip_property(const struct oip_model *model, const char *key); // NULL: not there
// UNIMPLEMENTED where the server lacks the extension.
MUST_USE enum status oip_repository_index(struct net *net, struct oip_index *out,
                                          struct error *err);

struct oip_explain {
  const char *model, *version, *fusion; // NULL for the server's choice of the last two
  int64_t tokens, sequences;            // 0: the server's choice
  int format;                           // of fusewire.proto
};
// fusewire.v1 Explain. The document is malloc'd: free with file_free.
MUST_USE enum status oip_explain(struct net *net, const struct oip_explain *ask,
                                 struct slice *document, struct error *err);
// fusewire.v1 Audit; NULL: of all. Free with fusewire__v1__audit_response__free_unpacked.
struct Fusewire__V1__AuditResponse;
MUST_USE enum status oip_audit(struct net *net, const char *model, const char *version,
                               struct Fusewire__V1__AuditResponse **out, struct error *err);

#endif
