// Prints what a model costs and, if a safetensors file is given, what is in it.
//   example configs/paper/gdn.json [model.safetensors]
#include <fmt/format.h>

#include <exception>
#include <string>

#include "model/config.h"
#include "model/cost.h"
#include "tensor/safetensors.h"

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: {} config.json [model.safetensors]\n", argv[0]);
    return 2;
  }
  const fwpkm::ModelConfig config = fwpkm::load_config(argv[1]);
  const fwpkm::Cost cost = fwpkm::count_cost(config, config.train.batch, config.train.seq);
  fmt::print("{}: {} parameters, {} active, {:.4e} FLOPs per training step\n", row_name(config),
             cost.total_params, cost.active_params, static_cast<double>(cost.true_flops));
  if (argc == 3) {
    const auto file = fwpkm::SafeTensors::open(argv[2]);
    size_t bytes = 0;
    for (const std::string& name : file.names()) {
      bytes += file.data(name).size();
    }
    fmt::print("{}: {} tensors, {} bytes\n", argv[2], file.tensors().size(), bytes);
  }
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
