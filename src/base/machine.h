// What the system says of memory.
#pragma once

#include <cstdint>

namespace fwpkm {

// Bytes that can still be had from the system; 0 if it does not say.
int64_t available_memory();
// Bytes of this process that are in memory now.
int64_t resident_memory();
// Bytes that this process holds from the allocator; unlike the above it does not depend on what the
// system keeps in memory. 0 under a sanitizer, which has an allocator of its own.
int64_t allocated_memory();

}  // namespace fwpkm
