#include "base/machine.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace fwpkm {
namespace {

// A line "key: number kB" of one of the system's lists, in bytes.
int64_t field(const char* list, const std::string& key) {
  std::ifstream info(list);
  std::string line;
  while (std::getline(info, line)) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

}  // namespace

int64_t available_memory() {
  return field("/proc/meminfo", "MemAvailable");
}

int64_t resident_memory() {
  return field("/proc/self/status", "VmRSS");
}

int64_t allocated_memory() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace fwpkm
