// Every compile-time bound, with its reason. Run-time limits are keys of config/server.yaml (conf/keys.def).
#ifndef LIMITS_H
#define LIMITS_H

#define LIMIT_NAME_BYTES 256        // model, tensor, weight names; longer ones are refused by name
#define LIMIT_REQUEST_ID_BYTES 256  // ModelInfer `id` is echoed; kept in the request
#define LIMIT_MODEL_INPUTS 16       // signature inputs of one model
#define LIMIT_MODEL_OUTPUTS 8       // also the width of an output mask (uint8_t)
#define LIMIT_REQUEST_PARAMETERS 32 // `parameters` entries of a request, each level
#define LIMIT_TENSOR_RANK 8         // rank of a tensor on the wire
#define LIMIT_GRAPH_TENSORS 8192    // a 48-layer encoder, unfused, is about 1,000
#define LIMIT_GRAPH_NODES 4096
#define LIMIT_WEIGHTS 4096
#define LIMIT_MODELS 64
#define LIMIT_LOOPS 16
#define LIMIT_DEVICES 16
#define LIMIT_DIM (1 << 24)         // any static dimension of a model
#define LIMIT_BATCH_REQUESTS 1024   // most requests in one batch

#endif
