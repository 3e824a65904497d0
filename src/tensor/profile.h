// Where the time of a run goes, op by op.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "tensor/cuda.h"

namespace fwpkm {

struct OpTime {
  double forward_ms = 0, backward_ms = 0;
  int64_t calls = 0;
};

// While one exists, every op call of this thread is timed and added up by op, and so are the phases
// that kernels name.
class Profile {
 public:
  // With `waits`, every op is waited for: on a GPU calls return before the work is done.
  explicit Profile(bool waits = false) : outer_(current_), waits_(waits) { current_ = this; }
  ~Profile() { current_ = outer_; }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  const std::map<std::string, OpTime>& times() const { return times_; }
  // Milliseconds of each phase, forward and backward alike.
  const std::map<std::string, double>& phases() const { return phases_; }

  // Runs `kernel`, timed if a profile exists.
  template <typename Kernel>
  static void time(const char* op, bool backward, Kernel&& kernel) {
    if (current_ == nullptr) {
      kernel();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    kernel();
    if (current_->waits_) {
      cuda::synchronize();
    }
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    OpTime& entry = current_->times_[op];
    (backward ? entry.backward_ms : entry.forward_ms) += ms.count();
    entry.calls += backward ? 0 : 1;
  }

  // A part of a kernel, named "<op>.<part>". Runs `part`, timed if a profile exists; otherwise it
  // costs a look at a pointer, so phases are for what runs once a chunk, not once a row.
  template <typename Part>
  static void phase(const char* name, Part&& part) {
    if (current_ == nullptr) {
      part();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    part();
    if (current_->waits_) {
      cuda::synchronize();
    }
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    current_->phases_[name] += ms.count();
  }
  // Whether phases of this thread are waited for: what could run side by side then runs one by one.
  static bool waiting() { return current_ != nullptr && current_->waits_; }

 private:
  static inline thread_local Profile* current_ = nullptr;
  Profile* outer_;
  bool waits_;
  std::map<std::string, OpTime> times_;
  std::map<std::string, double> phases_;
};

}  // namespace fwpkm
