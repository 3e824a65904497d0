#include "report/tokens.h"

#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "report/cell.h"

namespace fwpkm::report {
namespace {

using Json = nlohmann::json;

// Four significant digits are more than a colour or a list of slots shows, and a long text has
// very many of these numbers.
Json brief(double value) {
  if (!std::isfinite(value) || value == 0) {
    return number(value);
  }
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 3);
  // Dividing by the inverse of a small unit, so that 0.1234 is not 0.12340000000000001.
  return unit < 1 ? std::round(value / unit) / std::round(1 / unit)
                  : std::round(value / unit) * unit;
}

Json write_json(const Write& w) {
  Json json = {{"query", w.query},
               {"target", w.target},
               {"position", w.position},
               {"strength", brief(w.strength)}};
  const auto put = [&](const char* key, const std::string& text) {
    if (!text.empty()) {
      json[key] = text;
    }
  };
  put("before", w.before);
  put("after", w.after);
  put("text", w.text);
  if (w.target_id >= 0) {
    json["target_id"] = w.target_id;
  }
  return json;
}

}  // namespace

Json to_json(const Tokens& b) {
  // Slots are named once; reads are [index, weight, index, weight, ...].
  std::unordered_map<std::string, size_t> index;
  Json keys = Json::array();
  Json tokens = Json::array();
  for (const Token& t : b.tokens) {
    require(t.strength.empty() || t.strength.size() == b.layers.size(), "report",
            "token {} of '{}' has {} strengths for {} layers", tokens.size(), b.title,
            t.strength.size(), b.layers.size());
    Json json = {{"t", t.text}};
    if (t.id >= 0) {
      json["id"] = t.id;
    }
    if (t.needs >= 0) {
      json["needs"] = t.needs;
    }
    if (!t.mark.empty()) {
      json["mark"] = t.mark;
    }
    if (!t.note.empty()) {
      json["note"] = t.note;
    }
    for (const double strength : t.strength) {
      json["s"].push_back(brief(strength));
    }
    for (const SlotRead& read : t.reads) {
      const auto [it, is_new] = index.emplace(read.slot, keys.size());
      if (is_new) {
        keys.push_back(read.slot);
      }
      json["r"].push_back(it->second);
      json["r"].push_back(brief(read.weight));
    }
    tokens.push_back(std::move(json));
  }
  Json updates = Json::array();
  for (const Update& update : b.updates) {
    require(update.before <= b.tokens.size(), "report",
            "update {} of '{}' stands before token {}; there are {}", update.number, b.title,
            update.before, b.tokens.size());
    updates.push_back({update.before, update.number});
  }
  Json slots = Json::array();
  for (const Slot& slot : b.slots) {
    Json writes = Json::array();
    for (const Write& write : slot.writes) {
      writes.push_back(write_json(write));
    }
    slots.push_back({{"key", slot.key}, {"count", slot.count}, {"writes", writes}});
  }
  return {{"kind", "tokens"},   {"title", b.title},   {"name", b.name},
          {"memory", b.memory}, {"first", b.first},   {"strength_label", b.strength_label},
          {"layers", b.layers}, {"low", b.low},       {"high", b.high},
          {"tokens", tokens},   {"updates", updates}, {"keys", keys},
          {"slots", slots}};
}

}  // namespace fwpkm::report
