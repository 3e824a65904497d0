// An associative memory for programs that have vectors and no model.
//
//   fwpkm::Memory memory({.key_dim = 128, .value_dim = 64});
//   memory.write(keys, values);                      // N keys of 128 numbers, N values of 64
//   std::vector<float> found = memory.read(keys);    // N values of 64
//
// It is the memory of FwPKM layers: n_subkeys^2 slots, each with a value row, addressed by products
// of two small codebooks of sub-keys. A key reads the `topk` slots nearest to it and returns their
// weighted sum; a write moves the slots that its keys read towards the values, by one step of
// gradient descent. Cost in time does not grow with the number of slots but with n_subkeys; cost in
// space is the rows that were written. A new memory reads zeros. docs/memory.md tells more, also
// what happens when it fills up.
//
// This header needs no other of the library's. Every error is an exception derived from
// std::runtime_error whose text says what was wrong; the memory is then as it was before the call
// (but for running out of memory in a write, which may leave a part of it written).
//
// Threads: const calls on one memory may run at the same time; a call that changes it must be
// alone. Different memories have nothing to do with each other. Calls use all cores themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace fwpkm {

class Memory {
 public:
  // How near a sub-key is to its half of a key: by distance, -log(0.001 + |q - K|^2), or by dot
  // product.
  enum class Score : uint8_t { kDistance, kDot };

  // How far a write goes. `rewrite` goes all the way to the value and never past it, wherever no
  // other pair writes the same slots. `slots` takes steps of topk, `paper` of 1, `of(x)` of x.
  struct Step {
    enum class Kind : uint8_t { kRewrite, kSlots, kPaper, kNumber };
    Kind kind = Kind::kRewrite;
    double number = 0;

    static Step rewrite() { return {Kind::kRewrite, 0}; }
    static Step slots() { return {Kind::kSlots, 0}; }
    static Step paper() { return {Kind::kPaper, 0}; }
    static Step of(double number) { return {Kind::kNumber, number}; }
    bool operator==(const Step&) const = default;
  };

  struct Settings {
    int64_t key_dim = 64;  // even: the first half of a key goes to one codebook, the rest to the
                           // other
    int64_t value_dim = 64;
    int64_t n_subkeys = 256;  // in each codebook; the memory has their square of slots
    int64_t topk = 8;         // slots that a key reads
    Score score = Score::kDistance;
    Step value_step = Step::rewrite();
    // Sub-keys start in random directions, as long as a half key whose numbers have this root mean
    // square. With dot products it says how sharply the nearest slot is preferred; with distances
    // it matters little.
    double key_scale = 1;
    // How strongly writes move the sub-keys towards even use. At 0 they stay where they are, so
    // that what was written stays where it is looked for.
    double addr_weight = 0;
    uint64_t seed = 1;  // of the sub-keys

    bool operator==(const Settings&) const = default;
  };

  // What keys found, and where.
  struct Reading {
    std::vector<float> values;   // [N, value_dim]
    std::vector<int32_t> slots;  // [N, topk], the nearest first
    std::vector<float> weights;  // [N, topk]: of each slot's row in the value; they add up to 1
  };

  explicit Memory(const Settings& settings);
  ~Memory();
  // A copy is a memory of its own with the same contents. A memory that was moved from can only be
  // assigned to or destroyed.
  Memory(const Memory& other);
  Memory& operator=(const Memory& other);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  const Settings& settings() const;

  // One update by N pairs: keys [N, key_dim], values [N, value_dim]. All keys are read first, then
  // all slots are moved; where several pairs read one slot, it moves by the mean of what they ask
  // for. `strengths` [N], each from 0 to 1, weighs the pairs; without it all count 1.
  void write(std::span<const float> keys, std::span<const float> values,
             std::span<const float> strengths = {});

  // keys [N, key_dim]; the values found, [N, value_dim]. Many at once are faster than one by one,
  // and give the same bits.
  std::vector<float> read(std::span<const float> keys) const;
  void read(std::span<const float> keys, std::span<float> values) const;
  Reading read_with_slots(std::span<const float> keys) const;

  // Forgets everything; sub-keys are again as the seed made them.
  void clear();

  int64_t slots() const;  // that there are
  int64_t rows() const;   // slots that were written
  size_t bytes() const;   // of sub-keys, rows and their index

  // A safetensors file with the settings, the sub-keys and the rows that were written. It replaces
  // what was there only when it is complete.
  void save(const std::filesystem::path& path) const;
  // The memory as it was saved, bit for bit. A file that is cut off, damaged or something else is
  // refused by name.
  static Memory load(const std::filesystem::path& path);
  // The same, refusing a memory of other settings than these; the message names one that differs.
  static Memory load(const std::filesystem::path& path, const Settings& expected);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fwpkm
