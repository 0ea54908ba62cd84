// Every compile-time bound, with its reason. Run-time limits are keys of config/server.yaml
// (conf/keys.def).
#ifndef BOUNDS_H
#define BOUNDS_H

#define LIMIT_NAME_BYTES 256       // model, tensor, weight names; longer ones are refused by name
#define LIMIT_REQUEST_ID_BYTES 256 // ModelInfer `id` is echoed; kept in the request
#define LIMIT_MODEL_INPUTS 16      // signature inputs of one model
#define LIMIT_OPTIONAL_ROW_BYTES 65536 // of an input that may be left out: zeros are a static block
#define LIMIT_MODEL_OUTPUTS 8          // also the width of an output mask (uint8_t)
#define LIMIT_REQUEST_PARAMETERS 32    // `parameters` entries of a request, each level
#define LIMIT_TENSOR_RANK 8            // rank of a tensor on the wire
#define LIMIT_GRAPH_TENSORS 8192       // a 48-layer encoder, unfused, is about 1,000
#define LIMIT_GRAPH_NODES 4096
#define LIMIT_WEIGHTS 4096
#define LIMIT_MODELS 64
#define LIMIT_LOOPS 16
#define LIMIT_DEVICES 16
#define LIMIT_LANES 8              // batches in flight on one device
#define LIMIT_DIM (1 << 24)        // any static dimension of a model
#define LIMIT_BATCH_REQUESTS 1024  // most requests in one batch
#define LIMIT_CONF_BYTES (1 << 20) // a YAML file; 48 layers written out in full are about 60 KB
#define LIMIT_CONF_DEPTH 32        // nesting of lists and maps; our deepest model file has 7
#define LIMIT_CONF_NODES (1 << 16) // values with aliases expanded: an alias bomb is refused
#define LIMIT_CONF_KEYS 1024       // of one map; the search for duplicates is quadratic
#define LIMIT_CONF_ERRORS 100      // errors reported of one file; the rest is noise
#define LIMIT_HEADS 4096           // of one attention
#define LIMIT_REPEAT 1024          // times of one `repeat`; LIMIT_GRAPH_NODES bounds nested ones
#define LIMIT_SAFETENSORS_HEADER (4 << 20)     // bytes of JSON; 4,096 weights need about 600 KB
#define LIMIT_SAFETENSORS_TENSORS (1 << 15)    // of one file, used or not
#define LIMIT_EXPLAIN_NODES 640                // of a model that Explain writes; 48 layers have 583
#define LIMIT_EXPLAIN_BYTES ((4 << 20) - 4096) // of Explain: what stock clients take, 4 MiB
#define LIMIT_SYNTHETIC_BYTES (64LL << 30)     // all synthetic weights of a model, as fp32

#endif
