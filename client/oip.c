#include "client/oip.h"
#include "base/clock.h"
#include "client/call.h"
#include "client/file.h"
#include "client/pb.h"
#include "fusewire.pb-c.h"
#include "health.pb-c.h"
#include "open_inference.pb-c.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICE "/inference.GRPCInferenceService/"
#define CALL_TIMEOUT_NS (10 * NS_PER_S)

static void copy_text(char *out, size_t out_bytes, const char *text) {
  snprintf(out, out_bytes, "%s", text ? text : "");
  call_tame(out);
}

static enum status bad_reply(const char *method, struct error *err) {
  return error_set(err, STATUS_INTERNAL, "%s: the reply is not of the protocol's form", method);
}

// A call whose request is `message` (freed here). The reply's bytes are the caller's (file_free).
static enum status ask(struct net *net, const char *path, struct pb_buf *message,
                       struct slice *reply, struct error *err) {
  enum status status = STATUS_RESOURCE_EXHAUSTED;
  const struct slice bytes = {message->data, message->bytes};
  if (message->failed)
    status = error_set(err, status, "no memory");
  else
    status = net_call(net, path, bytes, CALL_TIMEOUT_NS, reply, err);
  pb_free(message);
  return status;
}

// ServerLive, ServerReady and ModelReady all answer with one bool in field 1.
static enum status ask_bool(struct net *net, const char *path, struct pb_buf *message, bool *out,
                            struct error *err) {
  struct slice reply = {0};
  const enum status status = ask(net, path, message, &reply, err);
  if (status != STATUS_OK) return status;
  Inference__ServerLiveResponse *live =
      inference__server_live_response__unpack(NULL, reply.bytes, reply.data);
  file_free(&reply);
  if (!live) return bad_reply(path, err);
  *out = live->live;
  inference__server_live_response__free_unpacked(live, NULL);
  return STATUS_OK;
}

enum status oip_server_live(struct net *net, bool *live, struct error *err) {
  return ask_bool(net, SERVICE "ServerLive", &(struct pb_buf){0}, live, err);
}

enum status oip_server_ready(struct net *net, bool *ready, struct error *err) {
  return ask_bool(net, SERVICE "ServerReady", &(struct pb_buf){0}, ready, err);
}

static struct pb_buf name_and_version(const char *name, const char *version) {
  struct pb_buf message = {0};
  pb_put_text(&message, 1, name);
  if (version && version[0]) pb_put_text(&message, 2, version);
  return message;
}

enum status oip_model_ready(struct net *net, const char *name, const char *version, bool *ready,
                            struct error *err) {
  struct pb_buf message = name_and_version(name, version);
  return ask_bool(net, SERVICE "ModelReady", &message, ready, err);
}

enum status oip_health(struct net *net, const char *service, int *serving, struct error *err) {
  struct pb_buf message = {0};
  struct slice reply = {0};
  if (service[0]) pb_put_text(&message, 1, service);
  const enum status status = ask(net, "/grpc.health.v1.Health/Check", &message, &reply, err);
  if (status != STATUS_OK) return status;
  Grpc__Health__V1__HealthCheckResponse *health =
      grpc__health__v1__health_check_response__unpack(NULL, reply.bytes, reply.data);
  file_free(&reply);
  if (!health) return bad_reply("Health/Check", err);
  *serving = (int)health->status;
  grpc__health__v1__health_check_response__free_unpacked(health, NULL);
  return STATUS_OK;
}

enum status oip_server_metadata(struct net *net, struct oip_server *out, struct error *err) {
  struct slice reply = {0};
  const enum status status = ask(net, SERVICE "ServerMetadata", &(struct pb_buf){0}, &reply, err);
  if (status != STATUS_OK) return status;
  Inference__ServerMetadataResponse *server =
      inference__server_metadata_response__unpack(NULL, reply.bytes, reply.data);
  file_free(&reply);
  if (!server) return bad_reply("ServerMetadata", err);
  *out = (struct oip_server){0};
  copy_text(out->name, sizeof out->name, server->name);
  copy_text(out->version, sizeof out->version, server->version);
  for (size_t i = 0; i < server->n_extensions && out->n_extensions < 16; i++) {
    copy_text(out->extensions[out->n_extensions++], sizeof out->extensions[0],
              server->extensions[i]);
  }
  inference__server_metadata_response__free_unpacked(server, NULL);
  return STATUS_OK;
}

static bool copy_tensor(const Inference__ModelMetadataResponse__TensorMetadata *in,
                        struct oip_tensor *out) {
  if (in->n_shape > TENSOR_RANK) return false;
  copy_text(out->name, sizeof out->name, in->name);
  out->type = datatype_of((struct slice){(const uint8_t *)in->datatype, strlen(in->datatype)});
  out->rank = (int)in->n_shape;
  for (int i = 0; i < out->rank; i++)
    out->dims[i] = in->shape[i];
  return true;
}

static bool copy_model(const Inference__ModelMetadataResponse *in, struct oip_model *out) {
  *out = (struct oip_model){0};
  copy_text(out->name, sizeof out->name, in->name);
  copy_text(out->platform, sizeof out->platform, in->platform);
  for (size_t i = 0; i < in->n_versions && out->n_versions < OIP_VERSIONS; i++) {
    copy_text(out->versions[out->n_versions++], sizeof out->versions[0], in->versions[i]);
  }
  for (size_t i = 0; i < in->n_properties && out->n_properties < OIP_PROPERTIES; i++) {
    struct oip_property *property = &out->properties[out->n_properties++];
    copy_text(property->key, sizeof property->key, in->properties[i]->key);
    copy_text(property->value, sizeof property->value, in->properties[i]->value);
  }
  if (in->n_inputs > OIP_TENSORS || in->n_outputs > OIP_TENSORS) return false;
  for (size_t i = 0; i < in->n_inputs; i++) {
    if (!copy_tensor(in->inputs[i], &out->inputs[out->n_inputs++])) return false;
  }
  for (size_t i = 0; i < in->n_outputs; i++) {
    if (!copy_tensor(in->outputs[i], &out->outputs[out->n_outputs++])) return false;
  }
  return true;
}

enum status oip_model_metadata(struct net *net, const char *name, const char *version,
                               struct oip_model *out, struct error *err) {
  struct pb_buf message = name_and_version(name, version);
  struct slice reply = {0};
  const enum status status = ask(net, SERVICE "ModelMetadata", &message, &reply, err);
  if (status != STATUS_OK) return status;
  Inference__ModelMetadataResponse *model =
      inference__model_metadata_response__unpack(NULL, reply.bytes, reply.data);
  file_free(&reply);
  if (!model) return bad_reply("ModelMetadata", err);
  const bool fits = copy_model(model, out);
  inference__model_metadata_response__free_unpacked(model, NULL);
  if (fits) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "model %s has more than %d inputs or outputs, or more than %d dimensions", name,
                   OIP_TENSORS, TENSOR_RANK);
}

const char *oip_property(const struct oip_model *model, const char *key) {
  for (int i = 0; i < model->n_properties; i++) {
    if (strcmp(model->properties[i].key, key) == 0) return model->properties[i].value;
  }
  return NULL;
}

// RepositoryIndex is Triton's extension; its messages (models=1 {name=1 version=2 state=3}) are
// read by hand.
static void copy_slice(char *out, size_t out_bytes, struct slice text) {
  snprintf(out, out_bytes, "%.*s", (int)(text.bytes < 1024 ? text.bytes : 1024),
           (const char *)text.data);
  call_tame(out);
}

static bool index_entry(struct slice entry, struct oip_index *out) {
  struct pb_reader reader = pb_reader_of(entry);
  struct pb_field field;
  const int i = out->n_models++;
  while (pb_next(&reader, &field)) {
    if (field.type != PB_BYTES) continue;
    if (field.number == 1) copy_slice(out->models[i].name, sizeof out->models[i].name, field.bytes);
    if (field.number == 2)
      copy_slice(out->models[i].version, sizeof out->models[i].version, field.bytes);
    if (field.number == 3)
      copy_slice(out->models[i].state, sizeof out->models[i].state, field.bytes);
  }
  return !reader.malformed && !reader.cut;
}

enum status oip_repository_index(struct net *net, struct oip_index *out, struct error *err) {
  struct slice reply = {0};
  const enum status status = ask(net, SERVICE "RepositoryIndex", &(struct pb_buf){0}, &reply, err);
  if (status != STATUS_OK) return status;
  struct pb_reader reader = pb_reader_of(reply);
  struct pb_field field;
  bool ok = true;
  memset(out, 0, sizeof *out);
  while (ok && out->n_models < OIP_MODELS && pb_next(&reader, &field)) {
    if (field.number == 1 && field.type == PB_BYTES) ok = index_entry(field.bytes, out);
  }
  file_free(&reply);
  return ok && !reader.malformed && !reader.cut ? STATUS_OK : bad_reply("RepositoryIndex", err);
}

// ASCII in lines, as fusewire.proto says.
static bool is_document(const char *text) {
  const char *at = text;
  while (*at == '\n' || (*at >= ' ' && *at <= '~'))
    at++;
  return *text && !*at;
}

enum status oip_explain(struct net *net, const struct oip_explain *ask_for, struct slice *document,
                        struct error *err) {
  struct pb_buf message = name_and_version(ask_for->model, ask_for->version);
  struct slice reply = {0};
  if (ask_for->tokens > 0) pb_put_varint(&message, 3, (uint64_t)ask_for->tokens);
  if (ask_for->sequences > 0) pb_put_varint(&message, 4, (uint64_t)ask_for->sequences);
  if (ask_for->fusion) pb_put_text(&message, 6, ask_for->fusion);
  if (ask_for->format > 0) pb_put_varint(&message, 5, (uint64_t)ask_for->format);
  const enum status status = ask(net, "/fusewire.v1.Fusewire/Explain", &message, &reply, err);
  if (status != STATUS_OK) return status;
  Fusewire__V1__ExplainResponse *explained =
      fusewire__v1__explain_response__unpack(NULL, reply.bytes, reply.data);
  file_free(&reply);
  if (!explained) return bad_reply("Explain", err);
  const bool strange = !is_document(explained->document);
  char *text = strange ? NULL : strdup(explained->document);
  fusewire__v1__explain_response__free_unpacked(explained, NULL);
  if (strange) return bad_reply("Explain", err);
  if (!text) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the explanation");
  *document = (struct slice){(const uint8_t *)text, strlen(text)};
  return STATUS_OK;
}

enum status oip_audit(struct net *net, const char *model, const char *version,
                      struct Fusewire__V1__AuditResponse **out, struct error *err) {
  struct pb_buf message = name_and_version(model ? model : "", version);
  struct slice reply = {0};
  const enum status status = ask(net, "/fusewire.v1.Fusewire/Audit", &message, &reply, err);
  if (status != STATUS_OK) return status;
  *out = fusewire__v1__audit_response__unpack(NULL, reply.bytes, reply.data);
  file_free(&reply);
  return *out ? STATUS_OK : bad_reply("Audit", err);
}
