// Whether this build has AddressSanitizer, under which memory is not what it is for users.
#pragma once

#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer)
#define FWPKM_ADDRESS_SANITIZER true
#endif
#elif defined(__SANITIZE_ADDRESS__)  // GCC
#define FWPKM_ADDRESS_SANITIZER true
#endif
#ifndef FWPKM_ADDRESS_SANITIZER
#define FWPKM_ADDRESS_SANITIZER false
#endif

namespace fwpkm {

inline constexpr bool kAddressSanitizer = FWPKM_ADDRESS_SANITIZER;

}  // namespace fwpkm
