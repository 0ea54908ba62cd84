// What gRPC C++ makes of the same work: a message of one bytes field, sent back.
// peer MODE PORT [CERTIFICATE KEY]
//
//   callback   the API that gRPC recommends; a thread pool of its own
//   queue      one completion queue, one thread, protobuf messages
//   raw        without protobuf: the received buffer goes back as it is; the most that gRPC C++ can do
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "echo.grpc.pb.h"

namespace {

constexpr int kWaiting = 128;  // calls that wait to be matched, so that no call waits for us

class CallbackMirror final : public peer::Mirror::CallbackService {
  grpc::ServerUnaryReactor *Reflect(grpc::CallbackServerContext *context, const peer::Bytes *request,
                                    peer::Bytes *reply) override {
    reply->set_payload(request->payload());
    grpc::ServerUnaryReactor *reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// A call on a completion queue: Advance() is called each time one of its operations ends.
class QueuedCall {
 public:
  virtual ~QueuedCall() = default;
  virtual void Advance(bool ok) = 0;
};

class TypedCall final : public QueuedCall {
 public:
  TypedCall(peer::Mirror::AsyncService *service, grpc::ServerCompletionQueue *queue)
      : service_(service), queue_(queue), writer_(&context_) {
    service_->RequestReflect(&context_, &request_, &writer_, queue_, queue_, this);
  }
  void Advance(bool ok) override {
    if (!ok || finishing_) {
      delete this;
      return;
    }
    new TypedCall(service_, queue_);
    reply_.set_payload(request_.payload());
    finishing_ = true;
    writer_.Finish(reply_, grpc::Status::OK, this);
  }

 private:
  peer::Mirror::AsyncService *service_;
  grpc::ServerCompletionQueue *queue_;
  grpc::ServerContext context_;
  peer::Bytes request_, reply_;
  grpc::ServerAsyncResponseWriter<peer::Bytes> writer_;
  bool finishing_ = false;
};

class RawCall final : public QueuedCall {
 public:
  RawCall(grpc::AsyncGenericService *service, grpc::ServerCompletionQueue *queue)
      : service_(service), queue_(queue), stream_(&context_) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, this);
  }
  void Advance(bool ok) override {
    if (!ok || state_ == kFinishing) {
      delete this;
    } else if (state_ == kMatching) {
      new RawCall(service_, queue_);
      state_ = kReading;
      stream_.Read(&buffer_, this);
    } else {
      state_ = kFinishing;
      stream_.WriteAndFinish(buffer_, grpc::WriteOptions(), grpc::Status::OK, this);
    }
  }

 private:
  enum { kMatching, kReading, kFinishing } state_ = kMatching;
  grpc::AsyncGenericService *service_;
  grpc::ServerCompletionQueue *queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer buffer_;
};

void Drive(grpc::ServerCompletionQueue *queue) {
  void *tag;
  bool ok;
  while (queue->Next(&tag, &ok)) static_cast<QueuedCall *>(tag)->Advance(ok);
}

std::string Read(const char *path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::shared_ptr<grpc::ServerCredentials> Tls(const char *certificate, const char *key) {
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({Read(key), Read(certificate)});
  return grpc::SslServerCredentials(options);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3 && argc != 5) return 2;
  const std::string mode = argv[1];
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::string(argv[2]),
                           argc > 4 ? Tls(argv[3], argv[4]) : grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(-1);
  CallbackMirror callback;
  peer::Mirror::AsyncService typed;
  grpc::AsyncGenericService raw;
  if (mode == "callback") {
    builder.RegisterService(&callback);
    builder.BuildAndStart().release()->Wait();
    return 0;
  }
  if (mode == "queue") builder.RegisterService(&typed);
  if (mode == "raw") builder.RegisterAsyncGenericService(&raw);
  auto queue = builder.AddCompletionQueue();
  auto server = builder.BuildAndStart();
  if (!server) return 1;
  for (int i = 0; i < kWaiting; i++) {
    if (mode == "queue") new TypedCall(&typed, queue.get());
    if (mode == "raw") new RawCall(&raw, queue.get());
  }
  Drive(queue.get());
}
