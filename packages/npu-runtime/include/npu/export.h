// Symbol visibility of libnpu_runtime.so: other wheels may link against symbols with NPU_API.
#pragma once

#if defined(NPU_RUNTIME_BUILDING)
#define NPU_API __attribute__((visibility("default")))
#else
#define NPU_API
#endif
