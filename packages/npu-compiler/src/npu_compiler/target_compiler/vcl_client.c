/* Runs Intel's NPU compiler, a Windows DLL with the VCL interface, for a parent process.
 *
 * Each line on standard input gets one line on standard output, with fields separated by tabs. The
 * first line is the library's path; its answer describes the compiler:
 *
 *   LIBRARY                   ready  VERSION  MODEL_FORMAT  OPSET
 *   IR  FLAGS  BLOB  LOG      done   RESULT_CODE  BLOB_BYTES
 *
 * Any answer may be "error", a reason and a code instead; a failed start ends the process.
 * Paths are UTF-8. Whatever the compiler prints goes to standard error. The program needs kernel32
 * alone, so that it builds without a Windows toolchain's headers and C library.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef void* Handle;
#define IMPORT __declspec(dllimport)
IMPORT Handle GetStdHandle(u32);
IMPORT int SetStdHandle(u32, Handle);
IMPORT int ReadFile(Handle, void*, u32, u32*, void*);
IMPORT int WriteFile(Handle, const void*, u32, u32*, void*);
IMPORT Handle CreateFileW(const u16*, u32, u32, void*, u32, u32, Handle);
IMPORT int GetFileSizeEx(Handle, u64*);
IMPORT Handle CreateFileMappingW(Handle, void*, u32, u32, u32, const u16*);
IMPORT void* MapViewOfFile(Handle, u32, u32, u32, u64);
IMPORT int UnmapViewOfFile(const void*);
IMPORT int CloseHandle(Handle);
IMPORT Handle LoadLibraryW(const u16*);
IMPORT void* GetProcAddress(Handle, const char*);
IMPORT Handle GetProcessHeap(void);
IMPORT void* HeapAlloc(Handle, u32, u64);
IMPORT int HeapFree(Handle, u32, void*);
IMPORT int MultiByteToWideChar(u32, u32, const char*, int, u16*, int);
IMPORT u32 GetLastError(void);
IMPORT void ExitProcess(u32);

enum { kLineBytes = 1 << 16, kFields = 4, kUtf8 = 65001, kLogInfo = 4 };
static const u32 kInput = (u32)-10, kOutput = (u32)-11, kError = (u32)-12;
static const Handle kInvalid = (Handle)-1;
static Handle input, output;

/* Structures of the VCL interface, version 7. */
typedef struct {
  u16 major, minor;
} Version;
typedef struct {
  Version version;
  int log_level;
} CompilerDescription;
typedef struct {
  u64 size;
  u32 id;
  u16 revision;
  u32 tiles;
} DeviceDescription;
typedef struct {
  const char* id;
  Version version;
  u32 opset;
} Properties;
typedef struct {
  const u8* ir;
  u64 ir_bytes;
  const char* flags;
  u64 flags_bytes;
} Request;
typedef struct Allocator {
  u8* (*allocate)(struct Allocator*, u64);
  void (*release)(struct Allocator*, u8*);
} Allocator;
static int (*get_version)(Version*, Version*);
static int (*create)(CompilerDescription*, DeviceDescription*, void**, void**);
static int (*get_properties)(void*, Properties*);
static int (*compile_ir)(void*, Request, Allocator*, u8**, u64*);
static int (*get_log)(void*, u64*, char*);

/* The compiler of this file may emit calls of these. */
void* memset(void* to, int value, u64 count) {
  for (volatile u8* p = to; count--;)
    *p++ = (u8)value;
  return to;
}
void* memcpy(void* to, const void* from, u64 count) {
  const u8* source = from;
  for (volatile u8* p = to; count--;)
    *p++ = *source++;
  return to;
}

static u8* allocate(Allocator* allocator, u64 bytes) {
  (void)allocator;
  return HeapAlloc(GetProcessHeap(), 0, bytes ? bytes : 1);
}
static void release(Allocator* allocator, u8* memory) {
  (void)allocator;
  HeapFree(GetProcessHeap(), 0, memory);
}

static void put(Handle file, const char* text) {
  u32 count = 0, written;
  while (text[count])
    ++count;
  WriteFile(file, text, count, &written, 0);
}
static void put_number(u64 value, u32 base) {
  char digits[24];
  int at = sizeof digits - 1;
  digits[at] = 0;
  do
    digits[--at] = "0123456789abcdef"[value % base];
  while (value /= base);
  put(output, digits + at);
}
static void fail(const char* reason, u32 code) {
  put(output, "error\t");
  put(output, reason);
  put(output, "\t");
  put_number(code, 10);
  put(output, "\n");
  ExitProcess(1);
}

/* Returns a path as Windows takes it; valid until the next call. */
static const u16* widened(const char* path) {
  static u16 wide[kLineBytes];
  wide[0] = 0; /* also where the text is not UTF-8 */
  MultiByteToWideChar(kUtf8, 0, path, -1, wide, kLineBytes);
  return wide;
}
static Handle open_file(const char* path, int is_new) {
  const u32 kRead = 0x80000000u, kWrite = 0x40000000u, kCreateAlways = 2, kOpenExisting = 3;
  return CreateFileW(widened(path), is_new ? kWrite : kRead, 1, 0,
                     is_new ? kCreateAlways : kOpenExisting, 0x80, 0);
}
/* Maps a file that is not empty; the mapping ends with unmap. */
static const void* map_file(const char* path, u64* bytes) {
  Handle file = open_file(path, 0), mapping = 0;
  const void* view = 0;
  if (file == kInvalid) return 0;
  if (GetFileSizeEx(file, bytes)) mapping = CreateFileMappingW(file, 0, 2, 0, 0, 0);
  if (mapping) view = MapViewOfFile(mapping, 4, 0, 0, 0);
  if (mapping) CloseHandle(mapping);
  CloseHandle(file);
  return view;
}
static int write_file(const char* path, const u8* data, u64 bytes) {
  Handle file = open_file(path, 1);
  if (file == kInvalid) return 0;
  int is_whole = 1;
  for (u64 at = 0; at < bytes && is_whole;) {
    u32 part = bytes - at > (1u << 30) ? 1u << 30 : (u32)(bytes - at), written = 0;
    is_whole = WriteFile(file, data + at, part, &written, 0) && written;
    at += written;
  }
  CloseHandle(file);
  return is_whole;
}
static void write_log(void* log, const char* path) {
  u64 bytes = 0;
  if (!log || get_log(log, &bytes, 0) || !bytes) return;
  char* text = (char*)allocate(0, bytes + 1);
  if (text && !get_log(log, &bytes, text)) write_file(path, (u8*)text, bytes);
  if (text) release(0, (u8*)text);
}

static void answer(void* compiler, void* log, char* line) {
  char* field[kFields] = {line};
  int fields = 1;
  for (char* p = line; *p; ++p) {
    if (*p != '\t') continue;
    *p = 0;
    if (fields < kFields) field[fields] = p + 1;
    ++fields;
  }
  u64 ir_bytes = 0, flags_bytes = 0, blob_bytes = 0;
  const u8* ir = fields == kFields ? map_file(field[0], &ir_bytes) : 0;
  const char* flags = ir ? map_file(field[1], &flags_bytes) : 0;
  if (!flags) {
    put(output, "error\tcannot read the request\t0\n");
  } else {
    Request request = {ir, ir_bytes, flags, flags_bytes};
    Allocator allocator = {allocate, release};
    u8* blob = 0;
    int code = compile_ir(compiler, request, &allocator, &blob, &blob_bytes);
    int is_kept = code || !blob || write_file(field[2], blob, blob_bytes);
    write_log(log, field[3]);
    if (blob) release(0, blob);
    if (is_kept) {
      put(output, "done\t");
      put_number((u32)code, 16);
      put(output, "\t");
      put_number(blob_bytes, 10);
      put(output, "\n");
    } else {
      put(output, "error\tcannot write the blob\t0\n");
    }
  }
  if (flags) UnmapViewOfFile(flags);
  if (ir) UnmapViewOfFile(ir);
}

/* Reads the next line, without its end; the process ends with its input. */
static char* read_line(void) {
  static char line[kLineBytes];
  for (u32 length = 0; length < kLineBytes; ++length) {
    u32 count = 0;
    if (!ReadFile(input, line + length, 1, &count, 0) || !count) ExitProcess(0);
    if (line[length] == '\n') {
      line[length] = 0;
      return line;
    }
  }
  fail("a request is too long", kLineBytes);
  return 0;
}

void start(void) {
  input = GetStdHandle(kInput);
  output = GetStdHandle(kOutput);
  SetStdHandle(kOutput, GetStdHandle(kError)); /* before the DLL's C library looks */
  Handle library = LoadLibraryW(widened(read_line()));
  if (!library) fail("cannot load the library", GetLastError());
  *(void**)&get_version = GetProcAddress(library, "vclGetVersion");
  *(void**)&create = GetProcAddress(library, "vclCompilerCreate");
  *(void**)&get_properties = GetProcAddress(library, "vclCompilerGetProperties");
  *(void**)&compile_ir = GetProcAddress(library, "vclAllocatedExecutableCreate2");
  *(void**)&get_log = GetProcAddress(library, "vclLogHandleGetString");
  if (!get_version || !create || !get_properties || !compile_ir || !get_log)
    fail("the library lacks functions of the VCL interface", GetLastError());
  Version version, profiling;
  get_version(&version, &profiling);
  CompilerDescription description = {version, kLogInfo};
  DeviceDescription device = {sizeof device, 0, 0xffff, 0xffffffffu};
  void *compiler = 0, *log = 0;
  int code = create(&description, &device, &compiler, &log);
  if (code) fail("vclCompilerCreate failed", (u32)code);
  Properties properties;
  code = get_properties(compiler, &properties);
  if (code) fail("vclCompilerGetProperties failed", (u32)code);
  put(output, "ready\t");
  put(output, properties.id);
  put(output, "\t");
  put_number(properties.version.major, 10);
  put(output, ".");
  put_number(properties.version.minor, 10);
  put(output, "\t");
  put_number(properties.opset, 10);
  put(output, "\n");

  for (;;)
    answer(compiler, log, read_line());
}
