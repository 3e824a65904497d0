// Writes a thousand random pairs into a memory, saves it, loads it and looks all of them up again.
//   remember /tmp/pairs.safetensors
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

#include "memory_api/memory.h"

int main(int argc, char** argv) try {
  const char* path = argc > 1 ? argv[1] : "pairs.safetensors";
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(1000 * 128), values(1000 * 64);
  for (float& x : keys) x = normal(generator);
  for (float& x : values) x = normal(generator);

  fwpkm::Memory memory({.key_dim = 128, .value_dim = 64, .n_subkeys = 512});
  memory.write(keys, values);
  memory.save(path);

  const std::vector<float> found = fwpkm::Memory::load(path).read(keys);
  double error = 0, length = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += (found[i] - values[i]) * (found[i] - values[i]);
    length += values[i] * values[i];
  }
  std::printf("%d of %d slots written, %.1f MB, relative error %.4f\n",
              static_cast<int>(memory.rows()), static_cast<int>(memory.slots()),
              static_cast<double>(memory.bytes()) / 1e6, error / length);
  return error < 0.05 * length ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
