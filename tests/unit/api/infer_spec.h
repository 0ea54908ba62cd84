// A ModelInferRequest as a test writes it down, right or wrong, and its bytes.
#ifndef UNIT_API_INFER_SPEC_H
#define UNIT_API_INFER_SPEC_H

#include "harness/cmocka_all.h"

#include "rpc/wire.h"

#include <string.h>

struct tensor_spec {
  const char *name, *datatype;
  int rank;
  int64_t shape[9];
  const void *raw; // raw_input_contents, when not NULL
  size_t raw_bytes;
  const int64_t *typed; // int64_contents
  int n_typed;
  const float *floats; // fp32_contents
  int n_floats;
};
struct spec {
  const char *model, *version, *id, *fusion;
  struct tensor_spec inputs[4];
  const char *outputs[4];
  bool fusion_as_int, shared_memory;
};

static void put_input(struct wire_writer *writer, const struct tensor_spec *input,
                      bool shared_memory) {
  uint8_t body[4096], inner[2048];
  struct wire_writer tensor = {body, body + sizeof body, false},
                     contents = {inner, inner + sizeof inner, false};
  wire_put_bytes(&tensor, 1, input->name, strlen(input->name));
  wire_put_bytes(&tensor, 2, input->datatype, strlen(input->datatype));
  for (int i = 0; i < input->rank; i++) {
    wire_put_varint(&tensor, 3 << 3);
    wire_put_varint(&tensor, (uint64_t)input->shape[i]);
  }
  if (shared_memory) wire_put_parameter_text(&tensor, 4, "shared_memory_region", 20, "r", 1);
  for (int i = 0; i < input->n_typed; i++) {
    wire_put_varint(&contents, TYPED_INT64 << 3);
    wire_put_varint(&contents, (uint64_t)input->typed[i]);
  }
  if (input->n_floats > 0)
    wire_put_bytes(&contents, TYPED_FP32, input->floats, (size_t)input->n_floats * 4);
  if (contents.at > inner) wire_put_bytes(&tensor, 5, inner, (size_t)(contents.at - inner));
  assert_false(tensor.over || contents.over);
  wire_put_bytes(writer, 5, body, (size_t)(tensor.at - body));
}

static size_t pack(const struct spec *spec, uint8_t *out, size_t out_bytes) {
  struct wire_writer writer = {out, out + out_bytes, false};
  wire_put_bytes(&writer, 1, spec->model, strlen(spec->model));
  if (spec->version) wire_put_bytes(&writer, 2, spec->version, strlen(spec->version));
  if (spec->id) wire_put_bytes(&writer, 3, spec->id, strlen(spec->id));
  if (spec->fusion && !spec->fusion_as_int)
    wire_put_parameter_text(&writer, 4, "fusion", 6, spec->fusion, strlen(spec->fusion));
  if (spec->fusion_as_int) wire_put_parameter_int(&writer, 4, "fusion", 6, 1);
  wire_put_parameter_int(&writer, 4, "priority", 8, 3); // not ours: ignored
  for (int i = 0; i < 4 && spec->inputs[i].name; i++)
    put_input(&writer, &spec->inputs[i], spec->shared_memory);
  for (int i = 0; i < 4 && spec->outputs[i]; i++) {
    uint8_t body[512];
    struct wire_writer output = {body, body + sizeof body, false};
    wire_put_bytes(&output, 1, spec->outputs[i], strlen(spec->outputs[i]));
    wire_put_bytes(&writer, 6, body, (size_t)(output.at - body));
  }
  for (int i = 0; i < 4 && spec->inputs[i].name; i++)
    if (spec->inputs[i].raw)
      wire_put_bytes(&writer, 7, spec->inputs[i].raw, spec->inputs[i].raw_bytes);
  assert_false(writer.over);
  return (size_t)(writer.at - out);
}

#endif
