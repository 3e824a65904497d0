// What the tests of evaluations that read long texts share: small models in double, and their
// numbers by a slow way of their own.
#pragma once

#include <cmath>

#include "base/file.h"
#include "eval/reading.h"
#include "session_models.h"
#include "temp_dir.h"
#include "text/tokenizer.h"

namespace fwpkm {

inline nlohmann::json reading_json(int64_t chunk, const nlohmann::json& changes = {}) {
  nlohmann::json json = memory_model({{"layout", "gdn+swa"}, {"vocab_size", 257}});
  json["fwpkm"]["layers"] = {1, 3};
  if (changes.is_object()) {
    json.merge_patch(changes);
  }
  if (chunk > 0) {
    json[json.contains("fwmlp") ? "fwmlp" : "fwpkm"]["chunk"] = chunk;
  }
  return json;
}

// As the commands open models, but drawn at random.
inline ModelWithChunk reading_models(const nlohmann::json& changes = {}) {
  return [=](int64_t chunk) {
    return session_model(reading_json(chunk, changes), Device::reference());
  };
}

inline std::vector<int32_t> bytes_of(const std::string& text) {
  return load_tokenizer("bytes")->encode(text);
}

// Token by token; the sum of the losses, from the logits before each.
inline double slow_read(Session* session, const std::string& text, bool learn) {
  double sum = 0;
  for (const int32_t token : bytes_of(text)) {
    if (session->in_stream() > 0) {
      const std::vector<double> logits = session->logits();
      double all = 0;
      for (const double x : logits) {
        all += std::exp(x);
      }
      sum += std::log(all) - logits[static_cast<size_t>(token)];
    }
    session->feed({&token, 1}, learn);
  }
  return sum;
}

// Lines of done.jsonl.
inline std::vector<nlohmann::json> done_lines(const std::filesystem::path& out) {
  std::vector<nlohmann::json> lines;
  std::string text = read_text(out / "done.jsonl");
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(nlohmann::json::parse(text.substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

// Equal but for rounding.
inline void expect_near(const nlohmann::json& a, const nlohmann::json& b) {
  const nlohmann::json x = a.flatten(), y = b.flatten();
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [key, value] : x.items()) {
    ASSERT_TRUE(y.contains(key)) << key;
    if (value.is_number_float()) {
      EXPECT_NEAR(value.get<double>(), y.at(key).get<double>(), 1e-9) << key;
    } else {
      EXPECT_EQ(value, y.at(key)) << key;
    }
  }
}

}  // namespace fwpkm
