// grpc.reflection.v1 and v1alpha: one handler for both, since the bytes are the same. Each question
// is answered at once from the embedded descriptors, by reference.
#include "api/descriptors.h"
#include "api/handlers.h"
#include "rpc/wire.h"

#include "reflection_v1.pb-c.h"
#include <stdlib.h>
#include <string.h>

typedef Grpc__Reflection__V1__ServerReflectionRequest question;
typedef Grpc__Reflection__V1__ServerReflectionResponse answer;
#define CASE(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##what
#define ANSWER_IS(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##what
#define STRINGS (1u << 1 | 1u << 3 | 1u << 4 | 1u << 6 | 1u << 7) // fields of a question
#define QUESTION_BYTES 4096 // names are far shorter; protobuf-c copies what it is given
#define QUEUED_MOST 16      // answers that the client has not read

static struct slice slice_of(const char *text) {
  return (struct slice){(const uint8_t *)text, strlen(text)};
}

static void send_answer(struct call *call, answer *reply, const question *original) {
  uint8_t *packed;
  reply->valid_host = original->host;
  reply->original_request = (question *)(uintptr_t)original; // packing only reads
  size_t bytes = protobuf_c_message_get_packed_size(&reply->base);
  if (!(packed = malloc(bytes))) {
    call_finish(call, STATUS_RESOURCE_EXHAUSTED, "out of memory for the reply");
    return;
  }
  protobuf_c_message_pack(&reply->base, packed);
  struct slice payload = {packed, bytes};
  (void)call_send(call, NULL, 0, &payload, 1, free, packed);
}

static void answer_error(struct call *call, const question *original, enum status status,
                         const char *text) {
  Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
  answer reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
  error.error_code = (int32_t)status;
  error.error_message = (char *)(uintptr_t)text;
  reply.message_response_case = ANSWER_IS(ERROR_RESPONSE);
  reply.error_response = &error;
  send_answer(call, &reply, original);
}

// ---- a file and all that it imports, each once ----
struct files {
  ProtobufCBinaryData data[DESCRIPTOR_FILES];
  size_t n;
};

static void files_add(struct files *files, const struct descriptor_file *file) {
  for (size_t i = 0; i < files->n; i++)
    if (files->data[i].data == file->bytes.data) return;
  files->data[files->n++] =
      (ProtobufCBinaryData){file->bytes.bytes, (uint8_t *)(uintptr_t)file->bytes.data};
}

static void files_close_over(struct files *files, const struct descriptor_file *file) {
  files_add(files, file);
  // What is added is looked at in turn, so that this ends with everything there, without recursion.
  for (size_t i = 0; i < files->n; i++)
    for (int k = 0; k < descriptors_count(); k++) {
      const struct descriptor_file *one = descriptors_at(k);
      for (int m = 0; one->bytes.data == files->data[i].data && m < one->n_imports; m++) {
        const struct descriptor_file *import = descriptors_named(one->imports[m]);
        if (import) files_add(files, import);
      }
    }
}

static void answer_file(struct call *call, const question *original,
                        const struct descriptor_file *file, const char *missing) {
  if (!file) {
    answer_error(call, original, STATUS_NOT_FOUND, missing);
    return;
  }
  struct files files = {.n = 0};
  files_close_over(&files, file);
  Grpc__Reflection__V1__FileDescriptorResponse response =
      GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
  answer reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
  response.file_descriptor_proto = files.data;
  response.n_file_descriptor_proto = files.n;
  reply.message_response_case = ANSWER_IS(FILE_DESCRIPTOR_RESPONSE);
  reply.file_descriptor_response = &response;
  send_answer(call, &reply, original);
}

// ---- services ----
static const char *const services[] = {
#define METHOD(service, name, handler) service,
#define STREAM(service, name, handler) service,
#include "api/methods.def"
#undef METHOD
#undef STREAM
};
#define N_SERVICES (sizeof services / sizeof *services)

static void answer_services(struct call *call, const question *original) {
  Grpc__Reflection__V1__ServiceResponse list[N_SERVICES], *pointers[N_SERVICES];
  Grpc__Reflection__V1__ListServiceResponse response =
      GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
  answer reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
  size_t n = 0;
  for (size_t i = 0; i < N_SERVICES; i++) {
    bool known = false;
    for (size_t k = 0; k < n && !known; k++)
      known = strcmp(list[k].name, services[i]) == 0;
    if (known) continue;
    grpc__reflection__v1__service_response__init(&list[n]);
    list[n].name = (char *)(uintptr_t)services[i];
    pointers[n] = &list[n];
    n++;
  }
  response.service = pointers;
  response.n_service = n;
  reply.message_response_case = ANSWER_IS(LIST_SERVICES_RESPONSE);
  reply.list_services_response = &response;
  send_answer(call, &reply, original);
}

// ---- extensions: we have none, but a message that is here has an empty list ----
static void answer_extensions(struct call *call, const question *original) {
  Grpc__Reflection__V1__ExtensionNumberResponse response =
      GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
  answer reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
  if (!descriptors_message(slice_of(original->all_extension_numbers_of_type))) {
    answer_error(call, original, STATUS_NOT_FOUND, "no message of that name is here");
    return;
  }
  response.base_type_name = original->all_extension_numbers_of_type;
  reply.message_response_case = ANSWER_IS(ALL_EXTENSION_NUMBERS_RESPONSE);
  reply.all_extension_numbers_response = &response;
  send_answer(call, &reply, original);
}

static void answer_question(struct call *call, const question *asked) {
  switch (asked->message_request_case) {
  case CASE(FILE_BY_FILENAME):
    answer_file(call, asked, descriptors_named(slice_of(asked->file_by_filename)),
                "no file of that name is here");
    return;
  case CASE(FILE_CONTAINING_SYMBOL):
    answer_file(call, asked, descriptors_symbol(slice_of(asked->file_containing_symbol)),
                "no symbol of that name is here");
    return;
  case CASE(FILE_CONTAINING_EXTENSION):
    answer_error(call, asked, STATUS_NOT_FOUND, "there are no extensions here");
    return;
  case CASE(ALL_EXTENSION_NUMBERS_OF_TYPE):
    answer_extensions(call, asked);
    return;
  case CASE(LIST_SERVICES):
    answer_services(call, asked);
    return;
  default:
    answer_error(call, asked, STATUS_INVALID_ARGUMENT, "message_request: nothing is asked");
  }
}

static void left(struct call *call, void *arg) {
  (void)arg;
  if (call_queued(call) < QUEUED_MOST) call_let_go(call);
}

void reflection_info(struct call *call, void *app) {
  (void)app;
  struct slice message = call_message(call);
  if (message.bytes > QUESTION_BYTES) {
    call_finish(call, STATUS_INVALID_ARGUMENT, "a question of more than 4096 bytes");
    return;
  }
  struct error err;
  enum status status = wire_check_strings(message, STRINGS, &err);
  if (status != STATUS_OK) {
    call_finish(call, status,
                status == STATUS_INVALID_ARGUMENT
                    ? "a name in the question contains a NUL byte; names have none"
                    : "the message is not a ServerReflectionRequest, or a name is not UTF-8");
    return;
  }
  question *asked =
      grpc__reflection__v1__server_reflection_request__unpack(NULL, message.bytes, message.data);
  if (!asked) {
    call_finish(call, STATUS_INTERNAL, "the message is not a ServerReflectionRequest");
    return;
  }
  call_on_sent(call, left, NULL);
  struct call_ref ref = call_ref_of(call);
  answer_question(call, asked);
  grpc__reflection__v1__server_reflection_request__free_unpacked(asked, NULL);
  if (call_find(call_rpc(call), ref) && call_queued(call) >= QUEUED_MOST) call_hold(call);
}

void reflection_info_alpha(struct call *call, void *app) {
  reflection_info(call, app);
}

const struct method_stream reflection_info_stream = {.many_in = true};
const struct method_stream reflection_info_alpha_stream = {.many_in = true};
