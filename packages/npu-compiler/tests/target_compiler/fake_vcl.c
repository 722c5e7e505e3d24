/* A library with the VCL interface that does what the option FAKE of a request says.
 * It refuses models with an operation called refuse_me without naming it. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  uint16_t major, minor;
} Version;
typedef struct {
  const char* id;
  Version version;
  uint32_t opset;
} Properties;
typedef struct {
  const uint8_t* ir;
  uint64_t ir_bytes;
  const char* flags;
  uint64_t flags_bytes;
} Request;
typedef struct Allocator {
  uint8_t* (*allocate)(struct Allocator*, uint64_t);
  void (*release)(struct Allocator*, uint8_t*);
} Allocator;

static const char* const kAccepted =
    "Estimated inference latency: 1500.0 us in dpu frequency 1850.00 MHz\n"
    "- DMA duration [ns]: 900 (60.00 %)\n- DPU duration [ns]: 750 (50.00 %)\n- SW duration [ns]: 0 "
    "(0.00 %)\n"
    "Activity Factor - 0.5\nCompilation memory usage: Peak 100 KB\n"
    "[WARNING] kernels unsupported by VPUNN: [builtin_Convert, builtin_Sin]\n";
static const char* const kRefused = "[ERROR] 12:00:00.0 [pass] layer `%s` cannot be split\n";
static char log_text[1024];

void vclGetVersion(Version* api, Version* profiling) {
  api->major = profiling->major = 7;
}
int vclCompilerCreate(void* description, void* device, void** compiler, void** log) {
  *compiler = *log = log_text;
  return getenv("FAKE_START") ? 3 : 0;
}
int vclCompilerGetProperties(void* compiler, Properties* found) {
  found->id = "fake-1";
  found->version.major = 8, found->version.minor = 4, found->opset = 11;
  return 0;
}
static int asks_for(const Request* request, const char* what) {
  return strstr(request->flags, what) != 0;
}
int vclAllocatedExecutableCreate2(void* compiler, Request request, Allocator* allocator,
                                  uint8_t** blob, uint64_t* bytes) {
  printf("noise on standard output\n");
  fflush(stdout);
  if (asks_for(&request, "FAKE=\"crash\"")) raise(SIGSEGV);
  if (asks_for(&request, "FAKE=\"shortage\"")) raise(SIGKILL);
  if (asks_for(&request, "FAKE=\"exit\"")) _exit(5);
  while (asks_for(&request, "FAKE=\"hang\""))
    sleep(1);
  if (asks_for(&request, "FAKE=\"memory\"")) {
    const size_t size = 400u << 20;
    memset(malloc(size), 1, size);
    for (;;)
      sleep(1);
  }
  if (memmem(request.ir, request.ir_bytes, "refuse_me", 9)) {
    snprintf(log_text, sizeof log_text, "[ERROR] 12:00:00.0 [pass] cannot legalize, at %p\n",
             (void*)request.ir);
    return 0x7;
  }
  if (asks_for(&request, "FAKE=\"refuse\"")) {
    snprintf(log_text, sizeof log_text, kRefused, "the_sum");
    return 0x7;
  }
  snprintf(log_text, sizeof log_text, "%s", kAccepted);
  FILE* trace = fopen("compileTimeScheduleTrace.json", "w");
  fputs("{\"traceEvents\": []}", trace);
  fclose(trace);
  *bytes = 4;
  *blob = allocator->allocate(allocator, *bytes);
  memcpy(*blob, "blob", *bytes);
  return 0;
}
int vclLogHandleGetString(void* log, uint64_t* bytes, char* text) {
  *bytes = strlen(log_text) + 1;
  if (text) memcpy(text, log_text, *bytes);
  return 0;
}
