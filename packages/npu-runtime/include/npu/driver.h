/* The driver interface: what a chip implements to be an npu device.
 *
 * One table of C functions. The runtime asks a driver for its table through one exported function,
 *
 *     const npu_driver* npu_driver_table(void);
 *
 * reads `abi_version` first, and refuses a table of another version. Every function that can fail
 * returns an npu_status, and after any status but NPU_OK `last_error` gives the calling thread one
 * sentence that names the vendor call which failed. No function may throw or end the process. All
 * are called from any thread, without Python's lock; one request is used by one thread at a time.
 *
 * Memory is unified: the runtime reserves a range of addresses once, and a driver makes parts of it
 * device memory with `memory_commit`. Host code reads and writes the same addresses.
 */
#ifndef NPU_DRIVER_H_
#define NPU_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NPU_DRIVER_ABI_VERSION 1

typedef enum npu_status {
  NPU_OK = 0,
  NPU_ERROR = 1,             /* the vendor's software failed; last_error names the call */
  NPU_ERROR_ARGUMENT = 2,    /* the caller passed something the function does not take */
  NPU_ERROR_MEMORY = 3,      /* not enough memory for the request */
  NPU_ERROR_UNSUPPORTED = 4, /* the device or its software cannot do this */
  NPU_ERROR_ABSENT = 5       /* the device or the vendor's software is not on this machine */
} npu_status;

/* Element types of tensors that cross the interface. */
typedef enum npu_dtype {
  NPU_DTYPE_INVALID = 0,
  NPU_DTYPE_BOOL = 1,
  NPU_DTYPE_UINT8 = 2,
  NPU_DTYPE_INT8 = 3,
  NPU_DTYPE_INT16 = 4,
  NPU_DTYPE_INT32 = 5,
  NPU_DTYPE_INT64 = 6,
  NPU_DTYPE_FLOAT16 = 7,
  NPU_DTYPE_BFLOAT16 = 8,
  NPU_DTYPE_FLOAT32 = 9,
  NPU_DTYPE_FLOAT64 = 10
} npu_dtype;

#define NPU_MAX_RANK 12
#define NPU_DIM_DYNAMIC (-1)

typedef struct npu_device_properties {
  char name[64];           /* the driver's own name of the device, for example "CPU" or "NPU" */
  char full_name[256];     /* the product, as the vendor prints it */
  char driver_version[64]; /* version of the vendor's software that serves it */
  char capabilities[256];  /* what the vendor lists, separated by blanks: "FP32 BF16 INT8 ..." */
  uint64_t memory_bytes;   /* memory the device can use; 0 when the vendor does not say */
} npu_device_properties;

typedef struct npu_option {
  const char* key;
  const char* value;
} npu_option;

/* Where a program comes from: a file, or text in memory with its weights. Exactly one of `path` and
 * `model` is set. `weights` must stay valid and unchanged until the program is unloaded. */
typedef struct npu_program_source {
  const char* path;
  const char* model;
  size_t model_bytes;
  const void* weights;
  size_t weights_bytes;
  const npu_option* options; /* the vendor's own properties */
  size_t option_count;
} npu_program_source;

typedef enum npu_direction { NPU_INPUT = 0, NPU_OUTPUT = 1 } npu_direction;

typedef struct npu_port {
  char name[256];
  npu_dtype dtype;
  int32_t rank; /* -1 when even the rank is dynamic */
  int64_t dims[NPU_MAX_RANK];
} npu_port;

typedef struct npu_program npu_program; /* compiled for one device */
typedef struct npu_request npu_request; /* one execution context of a program, with its own state */

typedef struct npu_driver {
  uint32_t abi_version; /* NPU_DRIVER_ABI_VERSION */
  const char* name;

  /* One sentence about the calling thread's latest failure. Never NULL. */
  const char* (*last_error)(void);

  /* Makes the driver ready and picks the devices it serves. `vendor_library` is the path of the
   * vendor's library (NULL when the driver needs none), `requested_device` what the user asked for
   * (NULL: the driver's choice). NPU_ERROR_ABSENT when the requested device is not there: a driver
   * never puts another in its place. Called once. */
  npu_status (*open)(const char* vendor_library, const char* requested_device);

  /* Why this device serves, as one sentence for people. Valid after open. */
  const char* (*choice_reason)(void);

  npu_status (*device_count)(int32_t* count);
  npu_status (*device_properties)(int32_t device, npu_device_properties* properties);

  /* Makes [address, address + size_bytes) device memory, readable and writable by the host. Both
   * are multiples of the page size, and inside the range that the runtime reserved. */
  npu_status (*memory_commit)(int32_t device, void* address, size_t size_bytes);
  /* Gives the pages back to the system; the addresses stay reserved. */
  npu_status (*memory_decommit)(int32_t device, void* address, size_t size_bytes);

  /* Compiles or imports a program. */
  npu_status (*program_load)(int32_t device, const npu_program_source* source,
                             npu_program** program);
  void (*program_unload)(npu_program* program);
  npu_status (*program_port_count)(const npu_program* program, npu_direction direction,
                                   size_t* count);
  npu_status (*program_port)(const npu_program* program, npu_direction direction, size_t index,
                             npu_port* port);
  /* Reads a property of the program as text, cut at `value_bytes`; NPU_ERROR_UNSUPPORTED for an
   * unknown key. "LOADED_FROM_CACHE" is answered by every driver, with "YES" or "NO". */
  npu_status (*program_property)(const npu_program* program, const char* key, char* value,
                                 size_t value_bytes);

  /* A new execution context; its variables start from their initial values. */
  npu_status (*request_create)(npu_program* program, npu_request** request);
  void (*request_destroy)(npu_request* request);
  /* Points a port at memory, which must stay valid until the port's next bind or the request's end.
   * An output whose shape is known only after the run is never bound: request_output finds it. */
  npu_status (*request_bind)(npu_request* request, npu_direction direction, size_t index,
                             npu_dtype dtype, int32_t rank, const int64_t* dims, void* data);
  /* Runs and waits. */
  npu_status (*request_run)(npu_request* request);
  /* Where an output is after a run, in memory that the request owns until its next run. */
  npu_status (*request_output)(npu_request* request, size_t index, npu_port* port,
                               const void** data);
} npu_driver;

#ifdef __cplusplus
}
#endif

#endif /* NPU_DRIVER_H_ */
