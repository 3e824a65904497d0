// Models on disk: a folder with config.json and model.safetensors, tensors under the authors'
// names. A folder of theirs loads as it is, and is saved as it was.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "model/model.h"
#include "tensor/safetensors.h"

namespace fwpkm {

// Fills the table from tensors named prefix + name, converting to the device's type. Missing
// tensors, wrong shapes, wrong types and tensors that belong to no parameter are errors by name.
// Names that do not start with the prefix are left alone. Parameters that are mapped must be so
// from this file; they are only checked.
void load_parameters(const SafeTensors& file, const std::string& prefix, const ModelConfig& config,
                     Parameters* parameters);

// Where the weights of a loaded model are. kMapped: in the file where it has the device's type, and
// read-only; processes that run one model share them. kOwn: in memory of the model's own, to be
// written. A model with gradients has its own in any case.
enum class Weights : uint8_t { kMapped, kOwn };

// Reads a model folder. Overrides are "key=value" and must not change any shape.
std::unique_ptr<Model> load_model(const std::filesystem::path& folder, Device device,
                                  bool gradients, std::span<const std::string> overrides = {},
                                  Weights weights = Weights::kMapped);

// Writes config.json and model.safetensors, each whole or not at all.
void save_model(const Model& model, const std::filesystem::path& folder, DType dtype = DType::kF32);

// Appends a parameter, or any contiguous view of floats, to a file being written.
void append_view(SafeTensorsWriter* writer, const std::string& name, const View& view);
// Fills such a view from a tensor of as many numbers.
void read_view(const SafeTensors& file, const std::string& name, const View& to);

}  // namespace fwpkm
