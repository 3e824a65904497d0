#include "eval/ppl.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace fwpkm {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Sums of losses, one for each model.
struct Sums {
  int64_t tokens = 0;
  std::vector<double> loss;

  explicit Sums(size_t models) : loss(models) {}
  void add(const json& line) {
    tokens += line.at("tokens").get<int64_t>();
    for (size_t m = 0; m < loss.size(); ++m) {
      loss[m] += line.at("loss").at(m).get<double>();
    }
  }
  json line() const { return {{"tokens", tokens}, {"loss", loss}}; }
  double mean(size_t m) const { return loss[m] / static_cast<double>(tokens); }
  double ppl(size_t m) const { return std::exp(mean(m)); }
};

// What was read since the last line, and of the document that is being read.
struct Window {
  Sums all;
  std::map<int64_t, Sums> documents;
  std::vector<MemoryStats> memory;
  json points = json::array();

  explicit Window(size_t models) : all(models), memory(models) {}

  json line() const {
    json result = all.line();
    result["documents"] = json::array();
    for (const auto& [number, sums] : documents) {
      json entry = sums.line();
      entry["document"] = number;
      result["documents"].push_back(std::move(entry));
    }
    for (const MemoryStats& stats : memory) {
      result["memory"].push_back(stats.json());
    }
    result["points"] = points;
    return result;
  }
};

fs::path state_path(const EvalFolder& folder, size_t lines, size_t model) {
  return folder.path() / fmt::format("state-{}.{}.session", lines, model);
}

// Reads on where the lines of the folder end.
std::vector<Reader> open_readers(std::span<const std::shared_ptr<const Model>> models,
                                 const DocumentTokens& data, const PplOptions& options,
                                 const EvalFolder& folder) {
  std::vector<Reader> readers;
  for (size_t m = 0; m < models.size(); ++m) {
    if (folder.done().empty()) {
      readers.emplace_back(Session(models[m], {.seed = 1, .history = false}), options.reader,
                           data.end_of_text());
    } else {
      readers.push_back(
          Reader::load(models[m], state_path(folder, folder.done().size(), m), options.reader));
    }
  }
  return readers;
}

// Adds the line of a window and keeps the states that belong behind it.
void close_window(const Window& window, std::span<const Reader> readers, EvalFolder* folder) {
  const size_t lines = folder->done().size();
  for (size_t m = 0; m < readers.size() && folder->keeps(); ++m) {
    readers[m].save(state_path(*folder, lines + 1, m));
  }
  folder->add(window.line());
  for (size_t m = 0; m < readers.size() && folder->keeps(); ++m) {
    fs::remove(state_path(*folder, lines, m));
  }
}

// Gates of all windows, by layer.
json merged_gates(std::span<const json> lines, size_t model) {
  struct Gates {
    double tokens = 0, sum = 0;
    std::vector<double> bins = std::vector<double>(MemoryStats::kBins);
  };
  std::map<std::string, Gates> layers;
  for (const json& line : lines) {
    for (const auto& [layer, part] : line.at("memory").at(model).items()) {
      if (part.contains("gate")) {
        Gates& gates = layers[layer];
        const double tokens = part.at("tokens");
        gates.tokens += tokens;
        gates.sum += tokens * part.at("gate").get<double>();
        for (size_t i = 0; i < gates.bins.size(); ++i) {
          gates.bins[i] += tokens * part.at("gate_histogram").at(i).get<double>();
        }
      }
    }
  }
  json result = json::object();
  for (auto& [layer, gates] : layers) {
    for (double& bin : gates.bins) {
      bin /= gates.tokens;
    }
    result[layer] = {{"gate", gates.sum / gates.tokens}, {"bins", gates.bins}};
  }
  return result;
}

json summary(std::span<const std::shared_ptr<const Model>> models, std::span<const json> lines) {
  const size_t count = models.size();
  Sums all(count);
  std::map<int64_t, Sums> documents;
  json result = {
      {"documents", json::array()}, {"curves", json::array()}, {"models", json::array()}};
  for (const json& line : lines) {
    all.add(line);
    for (const json& part : line.at("documents")) {
      documents.try_emplace(part.at("document").get<int64_t>(), count).first->second.add(part);
    }
    for (const json& point : line.at("points")) {
      result["curves"].push_back(point);
    }
  }
  require(all.tokens > 0, "eval", "there is no token to read in the data");
  result["tokens"] = all.tokens;
  for (const auto& [number, sums] : documents) {
    json entry = {{"document", number}, {"tokens", sums.tokens}};
    for (size_t m = 0; m < count; ++m) {
      entry["loss"].push_back(sums.mean(m));
      entry["ppl"].push_back(sums.ppl(m));
    }
    result["documents"].push_back(std::move(entry));
  }
  for (size_t m = 0; m < count; ++m) {
    json windows = json::array();
    int64_t end = 0;
    for (const json& line : lines) {
      Sums part(count);
      part.add(line);
      end += part.tokens;
      windows.push_back({{"end", end}, {"ppl", part.ppl(m)}, {"memory", line.at("memory").at(m)}});
    }
    result["models"].push_back({{"name", models[m]->config().name},
                                {"loss", all.mean(m)},
                                {"ppl", all.ppl(m)},
                                {"windows", std::move(windows)},
                                {"gates", merged_gates(lines, m)}});
  }
  return result;
}

}  // namespace

json PplOptions::json() const {
  nlohmann::json all = reader.json();
  all.update({{"tokens", tokens}, {"window", window}, {"every", every}});
  return all;
}

json evaluate_ppl(std::span<const std::shared_ptr<const Model>> models, DocumentTokens* data,
                  const PplOptions& options, EvalFolder* folder,
                  const std::function<void(double, int64_t)>& progress) {
  require(options.tokens > 0 || !data->endless(), "eval",
          "this data has no end; tell how many tokens to read");
  require(options.window > 0 && options.every > 0, "eval",
          "windows of {} tokens and points every {} cannot be", options.window, options.every);
  std::vector<Reader> readers = open_readers(models, *data, options, *folder);
  const int64_t limit = options.tokens > 0 ? options.tokens : std::numeric_limits<int64_t>::max();
  data->skip(readers[0].tokens());

  Window window(models.size());
  // Of the document that is being read, what windows before this one saw.
  Sums before(models.size());
  int64_t current = -1;
  const auto pass = [&](const json& line) {
    for (const json& part : line.at("documents")) {
      if (part.at("document") != current) {
        before = Sums(models.size());
        current = part.at("document");
      }
      before.add(part);
    }
  };
  std::for_each(folder->done().begin(), folder->done().end(), pass);
  DocumentTokens::Piece piece;
  while (readers[0].tokens() < limit) {
    const int64_t most = std::min({readers[0].room(), options.window - window.all.tokens,
                                   limit - readers[0].tokens(), int64_t{4096}});
    if (!data->next(&piece, most)) {
      break;
    }
    if (piece.document != current) {
      before = Sums(models.size());
      current = piece.document;
    }
    std::vector<std::vector<double>> losses;
    for (size_t m = 0; m < models.size(); ++m) {
      losses.push_back(readers[m].read(piece, &window.memory[m]));
    }
    Sums& part = window.documents.try_emplace(current, models.size()).first->second;
    for (size_t t = 0; t < piece.tokens.size(); ++t) {
      for (Sums* sums : {&window.all, &part}) {
        ++sums->tokens;
        for (size_t m = 0; m < models.size(); ++m) {
          sums->loss[m] += losses[m][t];
        }
      }
      if ((before.tokens + part.tokens) % options.every == 0) {
        Sums document = before;
        document.add(part.line());
        json point = {current, document.tokens};
        for (size_t m = 0; m < models.size(); ++m) {
          point.push_back(document.ppl(m));
        }
        window.points.push_back(std::move(point));
      }
    }
    if (window.all.tokens == options.window) {
      close_window(window, readers, folder);
      pass(folder->done().back());
      window = Window(models.size());
    }
    if (progress) {
      const auto read = static_cast<double>(readers[0].tokens());
      progress(options.tokens > 0 ? read / static_cast<double>(limit) : data->fraction(),
               readers[0].tokens());
    }
  }
  if (window.all.tokens > 0) {
    close_window(window, readers, folder);
  }
  return summary(models, folder->done());
}

}  // namespace fwpkm
