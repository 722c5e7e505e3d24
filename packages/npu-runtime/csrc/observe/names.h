// One copy of every text that events carry, kept for the process's life.
#pragma once

#include <string>
#include <string_view>

namespace npu::observe {

// The same address for the same text, from any thread. There are as many as programs, ops and
// counters have names, and only those that were seen while somebody listened.
const std::string* intern(std::string_view text);

// For a forked child: starts a table of its own, as another thread of the parent may have held the
// old one's lock. Addresses of before stay valid.
void forget_names();

}  // namespace npu::observe
