// One copy of each string in events, kept for the life of the process.
#pragma once

#include <string>
#include <string_view>

namespace npu::observe {

// Returns the same address for the same text, from any thread. There are as many as programs, ops
// and counters have names, and only those seen while a listener was active.
const std::string* intern(std::string_view text);

// For a forked child: starts a new table, because another thread of the parent may have held the
// old one's lock. Earlier addresses remain valid.
void forget_names();

}  // namespace npu::observe
