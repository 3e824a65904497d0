#include "train/carried.h"

#include <cstring>

#include "tensor/safetensors.h"

namespace fwpkm {
namespace {

std::string row_name(size_t layer, int64_t row, const char* what) {
  return fmt::format("layers.{}.rows.{}.{}", layer, row, what);
}

std::string mlp_name(size_t layer, size_t i) {
  return fmt::format("layers.{}.{}", layer, kFwmlpNames[i]);
}

}  // namespace

CarriedMemory::CarriedMemory(const Model& model, Pool& pool, int64_t rows)
    : model_(model), pool_(pool), rows_(rows) {
  const ModelConfig& c = model.config();
  bool any = false;
  for (int l = 0; l < c.layers; ++l) {
    any = any || c.has_fwpkm(l) || c.has_fwmlp(l);
  }
  if (!any || c.memory != MemoryMode::kPerSequence || c.carry == Carry::kSequence) {
    return;
  }
  layers_.resize(static_cast<size_t>(c.layers));
  for (int l = 0; l < c.layers; ++l) {
    if (c.has_fwpkm(l)) {
      layers_[static_cast<size_t>(l)].overlay =
          Overlay(rows, c.fwpkm.n_subkeys, c.fwpkm.value_dim, pool.device());
    }
  }
}

void CarriedMemory::start_batch(const std::vector<bool>& continues) {
  if (model_.config().carry != Carry::kDocument) {
    return;
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (continues[static_cast<size_t>(r)]) {
        continue;
      }
      if (layers_[l].overlay.owners() > 0) {
        layers_[l].overlay.clear(r);
      }
      for (size_t i = 0; i < layers_[l].mlp.size() && layers_[l].mlp[0]; ++i) {
        const View& base =
            model_.parameters().at(fmt::format("model.layers.{}.{}", l, kFwmlpNames[i])).view();
        copy_view(base, layers_[l].mlp[i].view().slice(0, r, r + 1).reshape(base.shape));
      }
    }
  }
}

void CarriedMemory::save(const std::filesystem::path& path) const {
  SafeTensorsWriter writer(path);
  const DType real = pool_.device().wide();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Overlay& overlay = layers_[l].overlay;
    for (int64_t r = 0; r < overlay.owners(); ++r) {
      int64_t count = 0;
      overlay.for_numbers(r, [&](int32_t, int32_t) { ++count; });
      writer.declare(row_name(l, r, "values"), real, {count, overlay.width()});
      writer.declare(row_name(l, r, "slots"), DType::kI32, {count});
    }
    for (size_t i = 0; i < layers_[l].mlp.size() && layers_[l].mlp[0]; ++i) {
      writer.declare(mlp_name(l, i), real, layers_[l].mlp[i].shape().list());
    }
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Overlay& overlay = layers_[l].overlay;
    const size_t bytes = static_cast<size_t>(overlay.width()) * dtype_size(real);
    for (int64_t r = 0; r < overlay.owners(); ++r) {
      std::vector<int64_t> slots;
      overlay.for_each(r, [&](int32_t slot, const std::byte* row) {
        slots.push_back(slot);
        writer.append_raw(row_name(l, r, "values"), {row, bytes});
      });
      writer.append(row_name(l, r, "slots"), slots);
    }
    for (size_t i = 0; i < layers_[l].mlp.size() && layers_[l].mlp[0]; ++i) {
      read_on_host(layers_[l].mlp[i].view(), [&](const View& view) {
        writer.append_raw(mlp_name(l, i), {static_cast<const std::byte*>(view.data),
                                           static_cast<size_t>(view.bytes())});
      });
    }
  }
  writer.commit();
}

void CarriedMemory::load(const std::filesystem::path& path) {
  const SafeTensors file = SafeTensors::open(path);
  const DType real = pool_.device().wide();
  const auto data = [&](const std::string& name, const Shape& shape) {
    require(file.info(name).dtype == real && file.info(name).shape == shape.list(), "run",
            "{}: {} is not {} {}", path.string(), name, dtype_name(real), shape.str());
    return file.data(name).data();
  };
  Run run(pool_);
  for (size_t l = 0; l < layers_.size(); ++l) {
    Overlay& overlay = layers_[l].overlay;
    const int64_t table = overlay.n() * overlay.n();
    const size_t bytes = static_cast<size_t>(overlay.width()) * dtype_size(real);
    for (int64_t r = 0; r < overlay.owners(); ++r) {
      const auto count = static_cast<int64_t>(file.info(row_name(l, r, "slots")).count());
      std::vector<int64_t> slots(static_cast<size_t>(count));
      file.read_as_i64(row_name(l, r, "slots"), slots.data(), slots.size());
      const std::byte* rows = data(row_name(l, r, "values"), {count, overlay.width()});
      overlay.clear(r);
      for (size_t i = 0; i < slots.size(); ++i) {
        require(slots[i] >= 0 && slots[i] < table, "run", "{}: {} names slot {} of {}",
                path.string(), row_name(l, r, "slots"), slots[i], table);
        overlay.put(r, static_cast<int32_t>(slots[i]), rows + i * bytes);
      }
    }
    for (size_t i = 0; i < layers_[l].mlp.size() && file.has(mlp_name(l, 0)); ++i) {
      const std::vector<int64_t>& dims = file.info(mlp_name(l, i)).shape;
      layers_[l].mlp[i] = run.make(kFwmlpNames[i], Shape(std::span(dims)), real);
      const View& view = layers_[l].mlp[i].view();
      const std::byte* from = data(mlp_name(l, i), view.shape);
      const auto bytes = static_cast<size_t>(view.bytes());
      if (view.device == DeviceKind::kCuda) {
        cuda::copy_in(view.data, from, bytes);
      } else {
        std::memcpy(view.data, from, bytes);
      }
    }
  }
}

}  // namespace fwpkm
