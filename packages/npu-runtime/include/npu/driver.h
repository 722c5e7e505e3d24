/* The driver interface: what a chip implements to be an npu device.
 *
 * One table of C functions. The runtime asks a driver for its table through one exported function,
 *
 *     const npu_driver* npu_driver_table(void);
 *
 * reads `abi_version` first, and refuses a table of another version. Every function that can fail
 * returns an npu_status, and after any status but NPU_OK `last_error` gives the calling thread one
 * sentence, "call: what went wrong", where call is the vendor's function that failed or the
 * function of this table that refused. A device, a port, a shape or an address that does not exist
 * is refused with NPU_ERROR_ARGUMENT. No function may throw or end the process. All are called from
 * any thread, without Python's lock; one request is used by one thread at a time.
 *
 * `python -m npu_runtime.driver_conformance --driver NAME` checks a driver against every sentence
 * below.
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
  int64_t inline_below_ns; /* runs shorter than this are better done on the calling thread than
                              enqueued */
} npu_device_properties;

typedef struct npu_option {
  const char* key;
  const char* value;
} npu_option;

/* Where a program comes from: a file, or text in memory with its weights. Exactly one of `path` and
 * `model` is set. A path that ends in ".blob" is a program that the device's compiler made ahead of
 * time, to be imported; options do not apply to it. `weights` must stay valid and unchanged until
 * the program is unloaded. */
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
typedef struct npu_stream npu_stream;   /* an in-order queue of one device */
typedef struct npu_event npu_event;     /* a point in a stream's order */

/* Tells that enqueued work has ended. `message` is one sentence when `status` is not NPU_OK, valid
 * during the call. Called once for each piece of work whose function returned NPU_OK, and never for
 * one that was refused; on any thread, in the stream's order, before the stream counts as idle. It
 * may destroy the request that ran. */
typedef void (*npu_done)(void* context, npu_status status, const char* message);

/* One layer of a program's latest run, as the vendor measured it. */
typedef struct npu_layer_record {
  char name[256];
  char type[64];
  char implementation[64];
  int64_t duration_us;
} npu_layer_record;

typedef struct npu_driver {
  uint32_t abi_version; /* NPU_DRIVER_ABI_VERSION */
  const char* name;     /* what NPU_DRIVER and the entry point call it */

  /* One sentence about the calling thread's latest failure. Never NULL. */
  const char* (*last_error)(void);

  /* Makes the driver ready and picks the devices it serves. `vendor_library` is the path of
   * OpenVINO's C library for the drivers of this wheel, and NULL for all others: they find their
   * vendor's software themselves. `requested_device` is what the user asked for (NULL: the driver's
   * choice); the name that device_properties gives can be asked for. NPU_ERROR_ABSENT when the
   * requested device is not there, with a sentence for people: a driver never puts another in its
   * place. Called once. */
  npu_status (*open)(const char* vendor_library, const char* requested_device);

  /* Why this device serves, as one sentence for people. Valid after open. */
  const char* (*choice_reason)(void);

  npu_status (*device_count)(int32_t* count);
  npu_status (*device_properties)(int32_t device, npu_device_properties* properties);

  /* Tells the driver which range of addresses the runtime reserved. Called once, before any commit.
   */
  npu_status (*memory_attach)(void* begin, size_t size_bytes);
  /* Makes [address, address + size_bytes) device memory, readable and writable by the host. Both
   * are multiples of the page size, and inside the range that the runtime reserved. */
  npu_status (*memory_commit)(int32_t device, void* address, size_t size_bytes);
  /* Gives the pages back to the system; the addresses stay reserved and can be committed again. */
  npu_status (*memory_decommit)(int32_t device, void* address, size_t size_bytes);
  /* Opens and closes a window in which host code may use [address, address + size_bytes), a whole
   * block as the runtime allocated it. Windows of one block nest. The runtime has waited for the
   * device's work on it. Both are NULL where the host may always use device memory. */
  npu_status (*host_access_begin)(int32_t device, void* address, size_t size_bytes);
  npu_status (*host_access_end)(int32_t device, void* address, size_t size_bytes);
  /* Copies between addresses of device memory, in the stream's order; NULL `done` waits for the
   * end. The ranges do not overlap; 0 bytes are a copy too. */
  npu_status (*memory_copy)(npu_stream* stream, void* to, const void* from, size_t size_bytes,
                            npu_done done, void* context);

  /* A new stream. `priority` is 0, or -1 for work that should come first. */
  npu_status (*stream_create)(int32_t device, int32_t priority, npu_stream** stream);
  /* Waits for the stream's work. */
  void (*stream_destroy)(npu_stream* stream);
  /* Sets `is_idle` to 1 when nothing is enqueued or running, else to 0. */
  npu_status (*stream_query)(npu_stream* stream, int32_t* is_idle);
  npu_status (*stream_synchronize)(npu_stream* stream);
  /* Later work of the stream starts only after the event's latest record is done. An event that was
   * never recorded holds nobody up; one that is destroyed or recorded again still holds up those
   * who wait. */
  npu_status (*stream_wait_event)(npu_stream* stream, npu_event* event);

  npu_status (*event_create)(int32_t device, npu_event** event);
  void (*event_destroy)(npu_event* event);
  /* The event is done when all earlier work of the stream is. Recording again replaces the point.
   */
  npu_status (*event_record)(npu_event* event, npu_stream* stream);
  /* An event that was never recorded is done. */
  npu_status (*event_query)(npu_event* event, int32_t* is_done);
  npu_status (*event_synchronize)(npu_event* event);
  /* When the event was done, in nanoseconds of one clock of the device. NPU_ERROR_ARGUMENT while it
   * is not done, or was never recorded. */
  npu_status (*event_time_ns)(npu_event* event, int64_t* time_ns);

  /* Compiles or imports a program. All requests of a program are destroyed before it is unloaded.
   */
  npu_status (*program_load)(int32_t device, const npu_program_source* source,
                             npu_program** program);
  void (*program_unload)(npu_program* program);
  npu_status (*program_port_count)(const npu_program* program, npu_direction direction,
                                   size_t* count);
  npu_status (*program_port)(const npu_program* program, npu_direction direction, size_t index,
                             npu_port* port);
  /* Reads a property of the program as text, cut at `value_bytes` with its closing zero;
   * NPU_ERROR_UNSUPPORTED for an unknown key. "LOADED_FROM_CACHE" is answered by every driver, with
   * "YES" or "NO". */
  npu_status (*program_property)(const npu_program* program, const char* key, char* value,
                                 size_t value_bytes);

  /* A new execution context; its variables start from their initial values. */
  npu_status (*request_create)(npu_program* program, npu_request** request);
  void (*request_destroy)(npu_request* request);
  /* Points a port at memory, which must stay valid until the port's next bind or the request's end.
   * An output whose shape is known only after the run is never bound: request_output finds it.
   * After a refusal the request still runs once the port is bound right. */
  npu_status (*request_bind)(npu_request* request, npu_direction direction, size_t index,
                             npu_dtype dtype, int32_t rank, const int64_t* dims, void* data);
  /* Runs, in the stream's order. With `done` it may return before the run ends; with NULL it waits.
   * After a run that failed, the request is destroyed or run again. */
  npu_status (*request_run)(npu_request* request, npu_stream* stream, npu_done done, void* context);
  /* Where an output is after a run, in memory that the request owns until its next run. */
  npu_status (*request_output)(npu_request* request, size_t index, npu_port* port,
                               const void** data);
  /* Layers of the latest run, in execution order where the vendor tells it: fills at most
   * `capacity` and sets `count` to how many there are. NPU_ERROR_UNSUPPORTED when the program
   * records none. */
  npu_status (*request_layers)(npu_request* request, npu_layer_record* records, size_t capacity,
                               size_t* count);
} npu_driver;

#ifdef __cplusplus
}
#endif

#endif /* NPU_DRIVER_H_ */
