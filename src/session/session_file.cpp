// Sessions as files; docs/sessions.md tells what is in them.
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/json_fields.h"
#include "session/section_file.h"
#include "session/session.h"
#include "tensor/convert.h"
#include "tensor/cuda.h"

namespace fwpkm {
namespace {

constexpr const char* kFormat = "fwpkm session";
constexpr uint64_t kVersion = 1;
constexpr const char* kWhat = "a session";

using nlohmann::json;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& list) {
  return std::as_bytes(std::span(list));
}

template <typename T>
std::vector<T> list_of(std::span<const std::byte> bytes) {
  std::vector<T> list(bytes.size() / sizeof(T));
  if (!list.empty()) {
    std::memcpy(list.data(), bytes.data(), list.size() * sizeof(T));
  }
  return list;
}

// The first numbers of a contiguous view as files hold them: in memory of the host, and never of 16
// bits.
std::vector<std::byte> staged(const View& view, size_t count) {
  std::vector<std::byte> bytes;
  read_on_host(view, [&](const View& host) {
    if (host.dtype == DType::kBF16) {
      bytes.resize(count * sizeof(float));
      load_elements(host.dtype, static_cast<const std::byte*>(host.data), count,
                    reinterpret_cast<float*>(bytes.data()));
    } else {
      bytes.resize(count * dtype_size(host.dtype));
      std::memcpy(bytes.data(), host.data, bytes.size());
    }
  });
  return bytes;
}

// Fills the first numbers of a contiguous view with what a file holds.
void put_numbers(std::span<const std::byte> from, const View& to) {
  if (to.device != DeviceKind::kCuda) {
    std::memcpy(to.data, from.data(), from.size());
  } else if (to.dtype != DType::kBF16) {
    cuda::copy_in(to.data, from.data(), from.size());
  } else {
    const std::vector<float> values = list_of<float>(from);
    std::vector<std::byte> bytes(values.size() * dtype_size(to.dtype));
    store_elements(to.dtype, values.data(), values.size(), bytes.data());
    cuda::copy_in(to.data, bytes.data(), bytes.size());
  }
}

}  // namespace

// Sees into sessions, on behalf of save and load.
struct SessionFile {
  using Snapshot = Session::Snapshot;

  // Rows of one layer that any snapshot has: each once.
  struct SharedRows {
    std::unordered_map<int32_t, int32_t> places;  // number in the arena -> in the file
    std::vector<int32_t> numbers;
    std::shared_ptr<RowArena> arena;

    // Slot and number in the file, for each row of an overlay.
    std::vector<int32_t> index(const Overlay& overlay) {
      std::vector<int32_t> list;
      arena = overlay.arena();
      overlay.for_numbers(0, [&](int32_t slot, int32_t number) {
        const auto [it, fresh] = places.emplace(number, static_cast<int32_t>(numbers.size()));
        if (fresh) {
          numbers.push_back(number);
        }
        list.push_back(slot);
        list.push_back(it->second);
      });
      return list;
    }
    void write(SectionWriter* writer, const std::string& name) const {
      const auto source = [this](const SectionWriter::Sink& sink) {
        arena->for_rows(numbers,
                        [&](size_t, const std::byte* row) { sink(row, arena->row_bytes()); });
      };
      writer->add(name, source, true);
    }
  };

  struct Writing {
    SectionWriter writer;
    std::vector<SharedRows> values, histories;  // of each layer
    std::vector<std::unique_ptr<std::vector<int32_t>>> lists;
    std::vector<std::unique_ptr<std::vector<std::byte>>> copies;

    void add_list(const std::string& name, std::vector<int32_t> list) {
      lists.push_back(std::make_unique<std::vector<int32_t>>(std::move(list)));
      writer.add(name, bytes_of(*lists.back()));
    }
    void add_tensor(const std::string& name, const Tensor& t) { add_front(name, t, 1, 1); }
    // The first `rows` of the first dimension that is not 1, which has `of`.
    void add_front(const std::string& name, const Tensor& t, int64_t rows, int64_t of) {
      const View& view = t.view();
      const int64_t count = of == 0 ? 0 : view.size() / of * rows;
      if (view.device == DeviceKind::kCuda) {
        copies.push_back(
            std::make_unique<std::vector<std::byte>>(staged(view, static_cast<size_t>(count))));
        writer.add(name, bytes_of(*copies.back()));
      } else {
        writer.add(name, {static_cast<const std::byte*>(view.data),
                          static_cast<size_t>(count) * dtype_size(view.dtype)});
      }
    }
  };

  static json write_snapshot(const Session& session, const Snapshot& s, const std::string& at,
                             Writing* out) {
    const ModelConfig& config = session.model_->config();
    json layers = json::array();
    for (size_t l = 0; l < s.state.layers.size(); ++l) {
      const LayerState& layer = s.state.layers[l];
      const std::string name = fmt::format("{}layers.{}.", at, l);
      json entry = json::object();
      if (layer.delta) {
        out->add_tensor(name + "delta", layer.delta);
        out->add_tensor(name + "tail", layer.tail);
      }
      if (layer.cache.k) {
        const int64_t length = layer.cache.length;
        entry["cache"] = length;
        out->add_front(name + "cache.k", layer.cache.k, length, layer.cache.k.dim(1));
        out->add_front(name + "cache.v", layer.cache.v, length, layer.cache.v.dim(1));
      }
      if (layer.lact.tokens > 0) {
        entry["lact"] = layer.lact.tokens;
        out->add_tensor(name + "lact.weights", layer.lact.weights);
        out->add_tensor(name + "lact.momentum", layer.lact.momentum);
        out->add_tensor(name + "lact.norms", layer.lact.norms);
        out->add_tensor(name + "lact.pending", layer.lact.pending);
      }
      if (!layer.fast.empty()) {
        const FastStream& fast = layer.fast[0];
        entry["queued"] = fast.queued;
        entry["updates"] = fast.updates;
        entry["written"] = fast.written;
        for (const auto& [kind, t] : {std::pair{"q", fast.q}, {"v", fast.v}, {"g", fast.g}}) {
          if (t && fast.queued > 0) {
            out->add_front(fmt::format("{}queue.{}", name, kind), t, fast.queued, t.dim(0));
          }
        }
        entry["keys"] = static_cast<bool>(fast.keys);
        if (fast.keys) {
          out->add_tensor(name + "keys", fast.keys);
        }
        entry["mlp"] = static_cast<bool>(fast.mlp[0]);
        for (size_t i = 0; i < fast.mlp.size() && fast.mlp[0]; ++i) {
          out->add_tensor(fmt::format("{}mlp.{}", name, i), fast.mlp[i]);
        }
        if (config.has_fwpkm(static_cast<int>(l))) {
          out->add_list(name + "slots", out->values[l].index(fast.overlay));
        }
        if (s.history[l].owners() > 0) {
          out->add_list(name + "history", out->histories[l].index(s.history[l]));
        }
      }
      layers.push_back(std::move(entry));
    }
    if (s.last) {
      out->add_tensor(at + "last", s.last);
    }
    out->writer.add(at + "tokens", bytes_of(s.tokens));
    out->writer.add(at + "places", bytes_of(s.places));
    return {{"position", s.state.position},      {"read", s.read},
            {"drawn", s.random.drawn()},         {"first", s.first},
            {"last", static_cast<bool>(s.last)}, {"layers", std::move(layers)}};
  }

  // Rows of a file that are mapped into an arena, owned by this.
  struct FileRows {
    std::shared_ptr<RowArena> arena;
    int32_t first = 0;
    int64_t count = 0;

    FileRows() = default;
    FileRows(std::shared_ptr<RowArena> to, int file, size_t offset, int64_t rows)
        : arena(std::move(to)), first(arena->map_rows(file, offset, rows)), count(rows) {}
    FileRows(FileRows&& other) noexcept
        : arena(std::move(other.arena)), first(other.first), count(std::exchange(other.count, 0)) {}
    FileRows& operator=(FileRows&&) = delete;
    ~FileRows() {
      for (int64_t i = 0; i < count; ++i) {
        arena->drop_row(first + static_cast<int32_t>(i));
      }
    }
  };

  // Reads a file that belongs to a model.
  struct Reading {
    SectionReader file;
    Session session;
    const ModelConfig& config;
    Run run;
    std::vector<FileRows> values, histories;  // of each layer

    Reading(std::shared_ptr<const Model> model, const std::filesystem::path& path, Pool& pool)
        : file(path, kFormat, kVersion, kWhat), config(model->config()), run(pool) {
      session.model_ = std::move(model);
    }
    template <typename... Args>
    void check(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
      require(ok, "session", "{} is damaged: {}", file.name(),
              fmt::format(format, std::forward<Args>(args)...));
    }
    static int64_t count(const json& from, const char* key) {
      const auto value = from.at(key).get<int64_t>();
      require(value >= 0, "session", "'{}' is {}", key, value);
      return value;
    }

    // A section of so many numbers.
    std::span<const std::byte> numbers(const std::string& name, int64_t count) {
      return file.section(name, static_cast<size_t>(count) * dtype_size(run.wide()));
    }
    void read_into(const std::string& name, const View& to) {
      put_numbers(numbers(name, to.size()), to);
    }
    Tensor tensor(const std::string& name, const char* called, const Shape& shape, DType dtype) {
      const Tensor t = run.make_kept(called, shape, dtype);
      read_into(name, t.view());
      return t;
    }
    // A tensor of `room` rows of which the first are in the file.
    Tensor front(const std::string& name, const char* called, const Shape& shape, int dimension,
                 int64_t rows, DType dtype) {
      const auto from = numbers(name, shape.size() / shape[dimension] * rows);
      const Tensor t = run.make_kept(called, shape, dtype);
      put_numbers(from, t.view());
      return t;
    }

    // Maps the rows of a section into an arena.
    FileRows map_rows(const std::string& name, const std::shared_ptr<RowArena>& arena) {
      const size_t bytes = file.section(name).size(), row = arena->row_bytes();
      check(bytes % row == 0 && bytes / row < INT32_MAX,
            "section '{}' does not hold whole rows of {} bytes", name, row);
      check(file.offset(name) % RowArena::kMapAlign == 0, "section '{}' begins at byte {}", name,
            file.offset(name));
      return bytes == 0 ? FileRows()
                        : FileRows(arena, file.file(), file.offset(name),
                                   static_cast<int64_t>(bytes / row));
    }
    void adopt(const std::string& name, const FileRows& rows, Overlay* overlay) {
      const auto list = list_of<int32_t>(file.section(name));
      check(list.size() % 2 == 0, "section '{}' has a slot without a row", name);
      int32_t before = -1;
      for (size_t i = 0; i < list.size(); i += 2) {
        check(list[i] > before && list[i] < config.fwpkm.slots() && list[i + 1] >= 0 &&
                  list[i + 1] < rows.count,
              "section '{}': slot {} (after {}) has row {} of {}", name, list[i], before,
              list[i + 1], rows.count);
        before = list[i];
        overlay->adopt(0, list[i], rows.first + list[i + 1]);
      }
    }

    void read_fast(const json& entry, size_t l, const std::string& name, Snapshot* s);
    Snapshot snapshot(const json& from, const std::string& at);
    void read();
  };
};

void SessionFile::Reading::read_fast(const json& entry, size_t l, const std::string& name,
                                     Snapshot* s) {
  const auto layer = static_cast<int>(l);
  const bool slots = config.has_fwpkm(layer);
  const int64_t lookahead = slots ? config.fwpkm.lookahead : config.fwmlp.lookahead;
  const int64_t room = lookahead + (slots ? config.fwpkm.chunk : config.fwmlp.chunk);
  const std::string weights = fmt::format("model.layers.{}.", layer);
  const auto& parameters = session.model_->parameters();
  FastStream& fast = s->state.layers[l].fast[0];
  fast.queued = count(entry, "queued");
  fast.updates = count(entry, "updates");
  fast.written = count(entry, "written");
  check(fast.queued < room, "{} tokens are queued in layer {}, where {} make an update",
        fast.queued, l, room);
  if (fast.queued > 0) {
    const int64_t q = parameters.at(weights + "fw_q_proj.weight").dim(0);
    const int64_t v = parameters.at(weights + "fw_v_proj.weight").dim(0);
    fast.q = front(name + "queue.q", "memory.queue", {room, q}, 0, fast.queued, run.device().real);
    fast.v = front(name + "queue.v", "memory.queue", {room, v}, 0, fast.queued, run.device().real);
    if (slots ? config.fwpkm.gating : config.fwmlp.gating) {
      fast.g = front(name + "queue.g", "memory.queue", {room}, 0, fast.queued, run.wide());
    }
  }
  if (entry.at("keys").get<bool>()) {
    check(slots, "layer {} has no sub-keys", l);
    fast.keys = tensor(name + "keys", "fwpkm.keys", parameters.at(weights + "fwpkm.keys").shape(),
                       run.wide());
  }
  if (entry.at("mlp").get<bool>()) {
    check(!slots, "layer {} has no FwMLP", l);
    for (size_t i = 0; i < fast.mlp.size(); ++i) {
      const Shape shape = parameters.at(weights + kFwmlpNames[i]).shape().batched(1);
      fast.mlp[i] = tensor(fmt::format("{}mlp.{}", name, i), "fwmlp", shape, run.wide());
    }
  }
  if (slots) {
    adopt(name + "slots", values[l], &fast.overlay);
  }
  if (s->history[l].owners() > 0) {
    adopt(name + "history", histories[l], &s->history[l]);
    check(s->first <= fast.written &&
              fast.written + fast.queued == s->first + static_cast<int64_t>(s->tokens.size()),
          "the tokens that wait in layer {} are not those of section 'tokens'", l);
  }
}

SessionFile::Snapshot SessionFile::Reading::snapshot(const json& from, const std::string& at) {
  Snapshot s = session.now_;
  s.read = count(from, "read");
  s.state.position = count(from, "position");
  check(s.state.position <= s.read, "position {} after {} tokens", s.state.position, s.read);
  s.first = count(from, "first");
  s.random = Random(session.settings_.seed);
  s.random.set_drawn(from.at("drawn").get<uint64_t>());
  s.tokens = list_of<int32_t>(file.section(at + "tokens"));
  s.places = list_of<int64_t>(file.section(at + "places", s.tokens.size() * sizeof(int64_t)));
  require_tokens(s.tokens, config, false);
  int64_t before = -1;
  for (const int64_t place : s.places) {
    check(place > before && place < s.read, "token {} waits after token {} of {}", place, before,
          s.read);
    before = place;
  }
  if (from.at("last").get<bool>()) {
    s.last = tensor(at + "last", "session.last", {1, 1, config.hidden_size}, run.device().real);
  }
  const json& layers = from.at("layers");
  check(layers.is_array() && layers.size() == s.state.layers.size(), "it has {} layers, not {}",
        layers.size(), s.state.layers.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto layer = static_cast<int>(l);
    const std::string name = fmt::format("{}layers.{}.", at, l);
    LayerState& to = s.state.layers[l];
    to.delta =
        to.delta ? tensor(name + "delta", "state.delta", to.delta.shape(), run.wide()) : Tensor();
    to.tail = to.tail ? tensor(name + "tail", "state.tail", to.tail.shape(), run.device().real)
                      : Tensor();
    if (layers[l].contains("cache")) {
      const Mixer mixer = config.mixer(layer);
      check(mixer != Mixer::kGdn, "layer {} has no attention", l);
      const int64_t length = count(layers[l], "cache");
      const int64_t capacity = KvCache::capacity(length, config.window(layer));
      check(length <= s.state.position && length <= capacity, "layer {} sees {} of {} tokens", l,
            length, s.state.position);
      const int64_t heads =
          mixer == Mixer::kLact ? config.attention.heads : config.attention.kv_heads;
      const Shape shape = {1, capacity, heads, config.attention.head_dim};
      to.cache.k = front(name + "cache.k", "cache.k", shape, 1, length, run.device().real);
      to.cache.v = front(name + "cache.v", "cache.v", shape, 1, length, run.device().real);
      to.cache.length = length;
    }
    if (layers[l].contains("lact")) {
      check(config.mixer(layer) == Mixer::kLact, "layer {} has no LaCT", l);
      to.lact.tokens = count(layers[l], "lact");
      for (auto& [kind, t] : {std::pair{"weights", &to.lact.weights},
                              {"momentum", &to.lact.momentum},
                              {"norms", &to.lact.norms},
                              {"pending", &to.lact.pending}}) {
        *t = tensor(fmt::format("{}lact.{}", name, kind), t->view().name, t->shape(), run.wide());
      }
    }
    if (!to.fast.empty()) {
      read_fast(layers[l], l, name, &s);
    }
  }
  return s;
}

void SessionFile::Reading::read() {
  const json& about = file.about();
  const Model& model = *session.model_;
  const std::string made = about.at("model").at("name").get<std::string>();
  const std::string dtype = about.at("dtype").get<std::string>();
  require(dtype == dtype_name(run.wide()), "session",
          "{} holds numbers of type {}, but this device computes in {}; open it with the --device "
          "that it was made on",
          file.name(), dtype, dtype_name(run.wide()));
  const std::string other = changed_field(
      about.at("model").at("config"), config_to_json(config),
      [](const std::string& path) { return path == "/name" || path.starts_with("/train/"); });
  require(other.empty(), "session",
          "{} was made with the model '{}' and other settings: {}; open it with its own model",
          file.name(), made, other);
  // Settings were compared one by one above: a key that a later version adds does not matter.
  ModelFingerprint theirs = model.fingerprint();
  theirs.tensors = about.at("model").at("tensors").get<std::vector<uint64_t>>();
  const std::string difference =
      describe_difference(theirs, model.fingerprint(), model.parameters().specs());
  require(difference.empty(), "session",
          "{} was made with the model '{}' ({}), but this one ('{}', {}) has other weights: {}; a "
          "memory is of no use to another model",
          file.name(), made, about.at("model").at("fingerprint").get<std::string>(), config.name,
          model.fingerprint().hex(), difference);

  SessionSettings settings;
  settings.seed = about.at("seed").get<uint64_t>();
  settings.history = about.at("history").get<bool>();
  session = Session(session.model_, settings);
  for (size_t l = 0; l < session.now_.state.layers.size(); ++l) {
    const auto& fast = session.now_.state.layers[l].fast;
    const auto& history = session.now_.history[l];
    values.push_back(config.has_fwpkm(static_cast<int>(l))
                         ? map_rows(fmt::format("rows.{}", l), fast[0].overlay.arena())
                         : FileRows());
    histories.push_back(history.owners() > 0
                            ? map_rows(fmt::format("histories.{}", l), history.arena())
                            : FileRows());
    for (int64_t i = 0; i < histories[l].count; ++i) {
      const auto row = histories[l].first + static_cast<int32_t>(i);
      for (const SlotWrite& write : SlotHistory::at(history.arena()->row(row)).writes) {
        require_tokens(write.tokens, config, true);
      }
    }
  }
  std::map<std::string, Snapshot> marks;
  int number = 0;
  for (const json& mark : about.at("marks")) {
    const auto name = mark.at("name").get<std::string>();
    marks[name] = snapshot(mark, fmt::format("marks.{}.", number++));
  }
  Snapshot now = snapshot(about.at("now"), "");
  file.require_all_read();
  session.marks_ = std::move(marks);
  session.now_ = std::move(now);
}

void Session::save(const std::filesystem::path& path,
                   const std::map<std::string, std::string>& about) const {
  const ModelFingerprint fingerprint = model_->fingerprint();
  SessionFile::Writing out;
  out.values.resize(now_.state.layers.size());
  out.histories.resize(now_.state.layers.size());
  json header = {{"user", about},
                 {"model",
                  {{"name", model_->config().name},
                   {"fingerprint", fingerprint.hex()},
                   {"config", config_to_json(model_->config())},
                   {"tensors", fingerprint.tensors}}},
                 {"dtype", dtype_name(model_->parameters().device().wide())},
                 {"seed", settings_.seed},
                 {"history", settings_.history},
                 {"marks", json::array()}};
  header["now"] = SessionFile::write_snapshot(*this, now_, "", &out);
  int number = 0;
  for (const auto& [name, snapshot] : marks_) {
    json mark =
        SessionFile::write_snapshot(*this, snapshot, fmt::format("marks.{}.", number++), &out);
    mark["name"] = name;
    header["marks"].push_back(std::move(mark));
  }
  for (size_t l = 0; l < out.values.size(); ++l) {
    if (model_->config().has_fwpkm(static_cast<int>(l))) {
      out.values[l].write(&out.writer, fmt::format("rows.{}", l));
      if (now_.history[l].owners() > 0) {
        out.histories[l].write(&out.writer, fmt::format("histories.{}", l));
      }
    }
  }
  out.writer.write(path, kFormat, kVersion, header);
}

Session Session::load(std::shared_ptr<const Model> model, const std::filesystem::path& path) {
  const PoolSet::Loan pool(model->pools());
  SessionFile::Reading reading(model, path, *pool);  // `model` outlives the loan of its pool
  try {
    reading.read();
  } catch (const json::exception& error) {
    fail("session", "{} is damaged: its header is not as it should be: {}", path.string(),
         error.what());
  }
  return std::move(reading.session);
}

std::map<std::string, std::string> Session::load_about(const std::filesystem::path& path) {
  const SectionReader file(path, kFormat, kVersion, kWhat);
  try {
    return file.about().at("user").get<std::map<std::string, std::string>>();
  } catch (const json::exception& error) {
    fail("session", "{} is damaged: its header is not as it should be: {}", path.string(),
         error.what());
  }
}

SessionBytes Session::bytes() const {
  SessionBytes sum;
  const auto add = [&](const Tensor& t) {
    sum.fixed += t ? static_cast<size_t>(t.view().bytes()) : 0;
  };
  for (size_t l = 0; l < now_.state.layers.size(); ++l) {
    const LayerState& layer = now_.state.layers[l];
    for (const Tensor& t : {layer.delta, layer.tail, layer.lact.weights, layer.lact.momentum,
                            layer.lact.norms, layer.lact.pending}) {
      add(t);
    }
    if (layer.cache.k) {
      add(layer.cache.keys());
      add(layer.cache.values());
    }
    for (const FastStream& fast : layer.fast) {
      for (const Tensor& t : {fast.keys, fast.q, fast.v, fast.g}) {
        add(t);
      }
      for (const Tensor& t : fast.mlp) {
        add(t);
      }
      sum.rows += static_cast<size_t>(fast.overlay.rows()) * fast.overlay.row_bytes();
      sum.index += fast.overlay.bytes();
    }
    sum.history += static_cast<size_t>(now_.history[l].rows()) * now_.history[l].row_bytes();
    sum.index += now_.history[l].bytes();
  }
  sum.index -= sum.rows + sum.history;
  add(now_.last);
  return sum;
}

}  // namespace fwpkm
