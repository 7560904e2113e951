/* The C ABI of Eitri. Every function returns a status code (0 = ok) and never throws, prints or exits; the text of the
 * last error of the calling thread is eitri_last_error(). Semantics of each operator: eitri/ops.hpp.
 *
 * Tensors have the memory layout of DLPack's DLTensor, so a `const DLTensor*` may be passed as it is. NULL means "not
 * given". Packed weights are passed as the 1-dimensional u8 tensor that eitri_pack_weights filled.
 *
 * Argument structs begin with their size: set `size = sizeof(struct)`. A library that knows more fields takes the missing
 * ones as absent; one that knows fewer refuses non-zero ones it does not know. */
#ifndef EITRI_EITRI_H_
#define EITRI_EITRI_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EITRI_API __attribute__((visibility("default")))
#else
#define EITRI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int32_t type; /* DLDeviceType: 1 = CPU, 2 = CUDA, 10 = ROCm (no backend runs it yet) */
  int32_t id;
} eitri_device;

typedef struct {
  uint8_t code; /* DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 10 e4m3fn, 11 e4m3fnuz, 12 e5m2, 14 e8m0fnu, 17 e2m1fn */
  uint8_t bits;
  uint16_t lanes; /* 1 (sub-byte types: elements are packed, low nibble first) */
} eitri_dtype;

typedef struct {
  void* data;
  eitri_device device;
  int32_t ndim;
  eitri_dtype dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL = row-major and contiguous */
  uint64_t byte_offset;
} eitri_tensor;

/* A stream of the tensors' device (CUstream, cudaStream_t; NULL: its legacy default stream), into which the call is put. NULL on
 * the CPU, where calls return when the work is done. */
typedef void* eitri_stream;

enum { /* status codes */
       EITRI_OK = 0,
       EITRI_INVALID_ARGUMENT = 1,
       EITRI_UNSUPPORTED = 2,
       EITRI_COMPILE_FAILED = 3,
       EITRI_DEVICE_ERROR = 4,
       EITRI_OUT_OF_MEMORY = 5,
       EITRI_IO_ERROR = 6,
       EITRI_INTERNAL = 7
};

/* Values of the int32 fields below, in the order of the enums of eitri/enums.hpp and eitri/ops.hpp. */
enum { EITRI_ACT_NONE, EITRI_ACT_RELU, EITRI_ACT_SILU, EITRI_ACT_GELU, EITRI_ACT_GELU_TANH, EITRI_ACT_SWIGLU, EITRI_ACT_SITUV2 };
enum { EITRI_GATE_NONE, EITRI_GATE_SEPARATED, EITRI_GATE_INTERLEAVED };
enum { EITRI_GATHER_TOKEN, EITRI_GATHER_POSITION };
enum { EITRI_NORM_PLAIN, EITRI_NORM_PLUS_ONE };
enum {
  EITRI_QUANT_NONE,
  EITRI_QUANT_PER_TENSOR,
  EITRI_QUANT_PER_TOKEN,
  EITRI_QUANT_PER_1X32,
  EITRI_QUANT_PER_1X128,
  EITRI_QUANT_PER_128X128,
  EITRI_QUANT_PER_1X16
};
enum { EITRI_SCORE_SOFTMAX, EITRI_SCORE_SIGMOID, EITRI_SCORE_SQRT_SOFTPLUS };
enum { EITRI_WEIGHT_FIRST_STAGE, EITRI_WEIGHT_SECOND_STAGE };

typedef struct {
  int32_t kind; /* EITRI_ACT_* */
  float limit, alpha, beta, linear_beta;
} eitri_activation_params;

typedef struct {
  size_t size;
  const eitri_tensor *a, *b, *c, *bias, *a_scale, *b_scale;
  eitri_activation_params activation;
  int32_t gate;
  int32_t a_quant, b_quant; /* EITRI_QUANT_* */
  const eitri_tensor* b_global_scale;
} eitri_gemm_args;

typedef struct {
  size_t size;
  const eitri_tensor *a, *b, *c, *bias, *a_scale, *b_scale, *row_weight, *sorted_ids, *sorted_expert_ids, *num_valid;
  int64_t tokens, block;
  int32_t gather;
  eitri_activation_params activation;
  int32_t gate;
  int32_t a_quant, b_quant; /* EITRI_QUANT_* */
  const eitri_tensor* b_global_scale;
} eitri_grouped_gemm_args;

typedef struct {
  size_t size;
  const eitri_tensor *x, *q, *scale, *sorted_ids, *num_valid;
  int64_t tokens;
  int32_t quant;          /* EITRI_QUANT_*; NONE: per token */
  int32_t scale_rounding; /* of f8e8m0 scales: 0 up, 1 down, 2 even */
} eitri_quantize_args;

typedef struct {
  size_t size;
  const eitri_tensor *x, *out, *scale, *sorted_ids, *num_valid;
  int64_t tokens;
  eitri_activation_params activation;
  int32_t gate;
} eitri_activation_args;

typedef struct {
  size_t size;
  const eitri_tensor *x, *weight, *residual, *residual_out, *out, *scale;
  float eps;
  int32_t norm_weight, quant;
} eitri_rmsnorm_args;

typedef struct {
  size_t size;
  const eitri_tensor *logits, *correction_bias, *weights, *ids;
  int32_t score, renormalize;
  float scale;
  int32_t groups, topk_groups;
} eitri_topk_gating_args;

typedef struct {
  size_t size;
  const eitri_tensor *topk_ids, *topk_weights, *expert_mask, *num_local_tokens;
  const eitri_tensor *sorted_ids, *sorted_weights, *sorted_expert_ids, *num_valid, *reverse;
  int64_t experts, block;
} eitri_moe_sort_args;

typedef struct {
  size_t size;
  const eitri_tensor *y, *reverse, *weights, *shared, *out, *num_local_tokens;
} eitri_moe_combine_args;

typedef struct {
  size_t size;
  const eitri_tensor *x, *w1, *w2, *topk_weights, *topk_ids, *out, *w1_scale, *w2_scale, *x_scale, *bias1, *bias2;
  const eitri_tensor *expert_mask, *num_local_tokens, *shared_w1, *shared_w2, *shared_w1_scale, *shared_w2_scale;
  eitri_activation_params activation;
  int32_t gate, weight_stage;
  int32_t a_quant, w_quant; /* EITRI_QUANT_* */
  const eitri_tensor *w1_global_scale, *w2_global_scale, *shared_w1_global_scale, *shared_w2_global_scale;
} eitri_fused_moe_args;

EITRI_API int eitri_gemm(const eitri_gemm_args* args, eitri_stream stream);
EITRI_API int eitri_grouped_gemm(const eitri_grouped_gemm_args* args, eitri_stream stream);
EITRI_API int eitri_quantize(const eitri_quantize_args* args, eitri_stream stream);
EITRI_API int eitri_activation(const eitri_activation_args* args, eitri_stream stream);
EITRI_API int eitri_rmsnorm(const eitri_rmsnorm_args* args, eitri_stream stream);
EITRI_API int eitri_topk_gating(const eitri_topk_gating_args* args, eitri_stream stream);
EITRI_API int eitri_moe_sort(const eitri_moe_sort_args* args, eitri_stream stream);
EITRI_API int eitri_moe_combine(const eitri_moe_combine_args* args, eitri_stream stream);
EITRI_API int eitri_fused_moe(const eitri_fused_moe_args* args, eitri_stream stream);

/* Bytes that eitri_pack_weights needs for `weights` ([n, k] or [experts, n, k]); `gate` as for the call that will use them. */
EITRI_API int eitri_packed_bytes(const eitri_tensor* weights, int32_t gate, size_t* bytes);
/* Packs into `buffer`, 64-byte aligned and `bytes` long. */
EITRI_API int eitri_pack_weights(const eitri_tensor* weights, int32_t gate, void* buffer, size_t bytes);

/* The same with block scales: `quant` is EITRI_QUANT_PER_1X16, PER_1X32, PER_1X128 or PER_128X128. */
EITRI_API int eitri_packed_bytes_scaled(const eitri_tensor* weights, const eitri_tensor* scale, int32_t quant, int32_t gate, size_t* bytes);
EITRI_API int eitri_pack_weights_scaled(const eitri_tensor* weights, const eitri_tensor* scale, int32_t quant, int32_t gate, void* buffer,
                                        size_t bytes);

/* The calling thread's last error; "" after a success. Valid until the thread's next call. */
EITRI_API const char* eitri_last_error(void);
EITRI_API const char* eitri_version(void);
/* Writes the text (or JSON) that explains routing of `problem` ("m=1,n=4096,...") into `out`, at most `capacity` bytes with
 * the final 0, and its full length without it into `length`. Call with capacity 0 to ask for the length. */
EITRI_API int eitri_explain(const char* op, const char* problem, int32_t json, char* out, size_t capacity, size_t* length);

/* Compiles into the cache what calls of `problem` need on the target GPUs ("sm_90a,gfx942"), which need not be there. `compiled`
 * (may be NULL) receives how many kernels were compiled now; the others came from the cache. */
EITRI_API int eitri_prebuild(const char* op, const char* problem, const char* targets, size_t* compiled);
/* From now on, for the whole process, a compile is an error (EITRI_COMPILE_FAILED). */
EITRI_API int eitri_seal(void);

#ifdef __cplusplus
}
#endif

#endif /* EITRI_EITRI_H_ */
