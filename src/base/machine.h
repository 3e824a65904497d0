// What the system says of memory.
#pragma once

#include <cstdint>

namespace fwpkm {

// Bytes that can still be had from the system; 0 if it does not say.
int64_t available_memory();
// Bytes of this process that are in memory now.
int64_t resident_memory();

}  // namespace fwpkm
