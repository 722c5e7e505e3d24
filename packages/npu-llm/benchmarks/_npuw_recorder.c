/* Records the programs that OpenVINO's NPU plugin compiles, for npuw.py.
 *
 * The plugin loads this library as its compiler's loader (VCL, the compiler's C interface), which
 * OpenVINO's Linux wheel lacks. Each program's IR goes into a file of the folder NPUW_RECORDINGS,
 * with the flags next to it. The plugin receives empty pages instead of a blob: it reads a blob
 * only where there is a device.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNKNOWN = 0x7ffffffe, UNSUPPORTED = 0x78000003, BLOB_SIZE = 4096 };

struct version {
  uint16_t major, minor;
};
struct properties {
  const char* id;
  struct version ir_version;
  uint32_t opset;
};
struct program {
  const uint8_t* ir;
  uint64_t ir_size;
  const char* flags;
  uint64_t flags_size;
};
struct allocator {
  uint8_t* (*allocate)(struct allocator*, uint64_t);
  void (*deallocate)(struct allocator*, uint8_t*);
};

/* The options that decide what NPUW and the plugin pass on; openvino 2026.4.1's compiler has all.
 */
static const char options[] =
    "EXECUTION_MODE_HINT PERFORMANCE_HINT NPU_COMPILER_TYPE INFERENCE_PRECISION_HINT PERF_COUNT "
    "NPU_PLATFORM LOG_LEVEL DEVICE_ID NPU_COMPILATION_MODE_PARAMS NPU_TILES NPU_MAX_TILES "
    "NPU_COMPILER_DYNAMIC_QUANTIZATION NPU_QDQ_OPTIMIZATION NPU_TURBO CACHE_MODE";

static int write_file(int number, const char* suffix, const void* data, uint64_t size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%04d.%s", getenv("NPUW_RECORDINGS"), number, suffix);
  FILE* file = fopen(path, "wb");
  if (!file) return UNKNOWN;
  const int is_whole = fwrite(data, 1, size, file) == size;
  return fclose(file) == 0 && is_whole ? SUCCESS : UNKNOWN;
}

static int record(struct program program) {
  static int count;
  const int number = __sync_fetch_and_add(&count, 1); /* NPUW compiles in several threads */
  if (write_file(number, "ir", program.ir, program.ir_size)) return UNKNOWN;
  return write_file(number, "flags", program.flags, strnlen(program.flags, program.flags_size));
}

int vclGetVersion(struct version* compiler, struct version* profiling) {
  *compiler = (struct version){7, 10};
  *profiling = (struct version){2, 0};
  return SUCCESS;
}

int vclCompilerCreate(void* description, void* device, void** compiler, void** log) {
  static int only;
  (void)description, (void)device;
  *compiler = &only;
  if (log) *log = &only;
  return SUCCESS;
}

int vclCompilerDestroy(void* compiler) {
  (void)compiler;
  return SUCCESS;
}

int vclCompilerGetProperties(void* compiler, struct properties* properties) {
  (void)compiler;
  *properties = (struct properties){"recorder", {8, 4}, 11};
  return SUCCESS;
}

int vclGetCompilerSupportedOptions(void* compiler, char* text, uint64_t* size) {
  (void)compiler;
  if (text) memcpy(text, options, sizeof options);
  *size = sizeof options;
  return SUCCESS;
}

int vclGetCompilerIsOptionSupported(void* compiler, const char* name, const char* value) {
  (void)compiler, (void)name, (void)value;
  return SUCCESS; /* the compiler refuses the others when it estimates */
}

int vclAllocatedExecutableCreate4(void* compiler, struct program program,
                                  struct allocator* allocator, uint8_t** blob, uint64_t* size,
                                  void** executable) {
  if (executable) *executable = compiler;
  *blob = allocator->allocate(allocator, BLOB_SIZE);
  *size = BLOB_SIZE;
  memset(*blob, 0, BLOB_SIZE);
  return record(program);
}

int vclExecutableDestroy(void* executable) {
  (void)executable;
  return SUCCESS;
}

int vclLogHandleGetString(void* log, size_t* size, char* text) {
  (void)log, (void)text;
  *size = 0;
  return SUCCESS;
}

/* The plugin requires these symbols; recording needs none of them. */
#define UNUSED(name)    \
  int name(void) {      \
    return UNSUPPORTED; \
  }
UNUSED(vclAllocatedExecutableCreate)
UNUSED(vclAllocatedExecutableCreate2)
UNUSED(vclAllocatedExecutableCreateWSOneShot2)
UNUSED(vclExecutableCreate)
UNUSED(vclExecutableGetCompatibilityString)
UNUSED(vclExecutableGetSerializableBlob)
UNUSED(vclProfilingCreate)
UNUSED(vclProfilingDestroy)
UNUSED(vclProfilingGetProperties)
UNUSED(vclGetDecodedProfilingBuffer)
UNUSED(vclQueryNetwork)
UNUSED(vclQueryNetworkCreate)
UNUSED(vclQueryNetworkDestroy)
