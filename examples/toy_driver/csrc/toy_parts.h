// Common parts of the toy driver: failures, the check of a device, and the functions of the table,
// by part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "npu/driver.h"

namespace toy {

// --8<-- [start:errors]
// Stores the calling thread's message, "call: cause".
npu_status fail(npu_status status, const std::string& sentence);
const char* last_error();

// The runtime must not see exceptions: an exception of the body becomes a status and a message.
template <typename Body>
npu_status guarded(const char* call, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(NPU_ERROR_MEMORY, std::string(call) + ": not enough memory");
  } catch (const std::exception& error) {
    return fail(NPU_ERROR, std::string(call) + ": " + error.what());
  }
}
// --8<-- [end:errors]

npu_status check_device(const char* call, std::int32_t device);

std::int64_t now_ns();

// Cut where it does not fit.
void copy_text(char* to, std::size_t bytes, const std::string& text);

// toy_streams.cpp
npu_status memory_copy(npu_stream* stream, void* to, const void* from, std::size_t size_bytes,
                       npu_done done, void* context);
npu_status stream_create(std::int32_t device, std::int32_t, npu_stream** stream);
void stream_destroy(npu_stream* stream);
npu_status stream_query(npu_stream* stream, std::int32_t* is_idle);
npu_status stream_synchronize(npu_stream* stream);
npu_status stream_wait_event(npu_stream* stream, npu_event* event);
npu_status event_create(std::int32_t device, npu_event** event);
void event_destroy(npu_event* event);
npu_status event_record(npu_event* event, npu_stream* stream);
npu_status event_query(npu_event* event, std::int32_t* is_done);
npu_status event_synchronize(npu_event* event);
npu_status event_time_ns(npu_event* event, std::int64_t* time_ns);

// toy_requests.cpp
npu_status program_load(std::int32_t device, const npu_program_source* source,
                        npu_program** program);
void program_unload(npu_program* program);
npu_status program_port_count(const npu_program* program, npu_direction direction,
                              std::size_t* count);
npu_status program_port(const npu_program* program, npu_direction direction, std::size_t index,
                        npu_port* port);
npu_status program_property(const npu_program*, const char* key, char* value,
                            std::size_t value_bytes);
npu_status request_create(npu_program* program, npu_request** request);
void request_destroy(npu_request* request);
npu_status request_bind(npu_request* request, npu_direction direction, std::size_t index,
                        npu_dtype dtype, std::int32_t rank, const std::int64_t* dims, void* data);
npu_status request_run(npu_request* request, npu_stream* stream, npu_done done, void* context);
npu_status request_output(npu_request* request, std::size_t index, npu_port* port,
                          const void** data);
npu_status request_layers(npu_request* request, npu_layer_record* records, std::size_t capacity,
                          std::size_t* count);

}  // namespace toy
