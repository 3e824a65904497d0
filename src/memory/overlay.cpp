#include "memory/overlay.h"

#include <utility>

#include "memory/gpu_rows.h"

namespace fwpkm {

Overlay::Overlay(int64_t owners, int64_t n, int64_t width, Device device)
    : Overlay(owners,
              std::make_shared<RowArena>(n, static_cast<size_t>(width) * dtype_size(device.wide()),
                                         device.kind),
              device) {}

Overlay::Overlay(int64_t owners, std::shared_ptr<RowArena> arena, Device device)
    : owners_(owners),
      n_(arena->n()),
      width_(static_cast<int64_t>(arena->row_bytes() / dtype_size(device.wide()))),
      device_(device),
      arena_(std::move(arena)),
      directory_(static_cast<size_t>(owners * n_), -1),
      gpu_(arena_->on_gpu() ? std::make_unique<Gpu>() : nullptr) {}

Overlay::Gpu::~Gpu() {
  cuda::release(directory, bytes);
}

Overlay::~Overlay() {
  for (const int32_t page : directory_) {
    if (page >= 0) {
      arena_->drop_page(page);
    }
  }
}

Overlay::Overlay(const Overlay& other)
    : owners_(other.owners_),
      n_(other.n_),
      width_(other.width_),
      used_(other.used_),
      pages_(other.pages_),
      device_(other.device_),
      arena_(other.arena_),
      directory_(other.directory_),
      gpu_(other.gpu_ ? std::make_unique<Gpu>() : nullptr) {
  other.send();
  for (const int32_t page : directory_) {
    if (page >= 0) {
      arena_->keep_page(page);
    }
  }
}

Overlay::Overlay(Overlay&& other) noexcept {
  swap(other);
}

Overlay& Overlay::operator=(Overlay other) noexcept {
  swap(other);
  return *this;
}

void Overlay::swap(Overlay& other) noexcept {
  std::swap(owners_, other.owners_);
  std::swap(n_, other.n_);
  std::swap(width_, other.width_);
  std::swap(used_, other.used_);
  std::swap(pages_, other.pages_);
  std::swap(device_, other.device_);
  std::swap(arena_, other.arena_);
  std::swap(directory_, other.directory_);
  std::swap(gpu_, other.gpu_);
}

size_t Overlay::bytes() const {
  return (directory_.size() + static_cast<size_t>(pages_ * n_)) * sizeof(int32_t) +
         static_cast<size_t>(used_) * row_bytes();
}

int32_t* Overlay::place(int64_t owner, int32_t slot) {
  int32_t& page = directory_[static_cast<size_t>(owner * n_ + slot / n_)];
  const int32_t before = page;
  if (page < 0) {
    page = arena_->add_page();
    ++pages_;
  } else {
    page = arena_->own_page(page);
  }
  if (gpu_) {
    if (page != before) {
      (before < 0 ? gpu_->fresh : gpu_->copied).push_back(page);
      gpu_->sent = false;
    }
    gpu_->places.emplace_back(page, static_cast<int32_t>(slot % n_));
  }
  return arena_->page(page) + slot % n_;
}

int32_t Overlay::renew(int64_t owner, int32_t slot) {
  int32_t* row = place(owner, slot);
  if (*row < 0) {
    *row = arena_->add_row();
    ++used_;
  } else {
    *row = arena_->own_row(*row);
  }
  return *row;
}

void Overlay::put(int64_t owner, int32_t slot, const void* from) {
  arena_->fill(renew(owner, slot), from);
}

void Overlay::adopt(int64_t owner, int32_t slot, int32_t number) {
  int32_t* row = place(owner, slot);
  arena_->keep_row(number);
  *row = number;
  ++used_;
}

bool Overlay::erase(int64_t owner, int32_t slot) {
  if (number(owner, slot) < 0) {
    return false;
  }
  int32_t* row = place(owner, slot);
  arena_->drop_row(std::exchange(*row, -1));
  --used_;
  return true;
}

void Overlay::clear(int64_t owner) {
  send();  // what is not sent yet may be about pages that are let go here
  for (int64_t p = 0; p < n_; ++p) {
    int32_t& page = directory_[static_cast<size_t>(owner * n_ + p)];
    if (page < 0) {
      continue;
    }
    for (int64_t i = 0; i < n_; ++i) {
      used_ -= arena_->page(page)[i] >= 0 ? 1 : 0;
    }
    arena_->drop_page(std::exchange(page, -1));
    --pages_;
    if (gpu_) {
      gpu_->sent = false;
    }
  }
}

void Overlay::send() const {
  if (!gpu_) {
    return;
  }
  const std::lock_guard lock(gpu_->mutex);
  if (gpu_->sent && gpu_->places.empty()) {
    return;
  }
  int32_t* pages = arena_->gpu_pages();
  gpu_rows::clear_pages(pages, n_, gpu_->fresh);
  for (const int32_t page : gpu_->copied) {
    gpu_rows::send(pages + page * n_, arena_->page(page),
                   static_cast<size_t>(n_) * sizeof(int32_t));
  }
  std::vector<gpu_rows::Change> changes;
  changes.reserve(gpu_->places.size());
  for (const auto& [page, place] : gpu_->places) {
    changes.push_back({page, place, arena_->page(page)[place]});
  }
  gpu_rows::change_pages(pages, n_, changes);
  gpu_->fresh.clear();
  gpu_->copied.clear();
  gpu_->places.clear();
  if (!gpu_->sent) {
    if (gpu_->directory == nullptr) {
      gpu_->bytes = directory_.size() * sizeof(int32_t);
      gpu_->directory = static_cast<int32_t*>(cuda::allocate(gpu_->bytes));
      require(gpu_->directory != nullptr, "memory", "the GPU has no memory left for a directory");
    }
    gpu_rows::send(gpu_->directory, directory_.data(), gpu_->bytes);
    gpu_->sent = true;
  }
}

OverlayViews Overlay::views() const {
  if (used_ == 0) {
    return {};
  }
  send();
  const auto constant = [&](const char* name, const void* data, DType dtype, const Shape& shape) {
    return Tensor::constant(View(name, const_cast<void*>(data), dtype, device_.kind, shape));
  };
  OverlayViews views;
  views.directory = constant("overlay.directory", gpu_ ? gpu_->directory : directory_.data(),
                             DType::kI32, {owners_, n_});
  views.pages = constant("overlay.pages", gpu_ ? arena_->gpu_pages() : arena_->page(0), DType::kI32,
                         {arena_->page_limit(), n_});
  views.rows =
      constant("overlay.rows", arena_->row(0), device_.wide(), {arena_->row_limit(), width_});
  return views;
}

}  // namespace fwpkm
