#include "model/fingerprint.h"

#include <string_view>

#include "base/hash.h"

namespace fwpkm {

std::string ModelFingerprint::hex() const {
  std::vector<uint64_t> all = {config};
  all.insert(all.end(), tensors.begin(), tensors.end());
  return hash_hex({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(uint64_t)});
}

uint64_t config_fingerprint(const ModelConfig& config) {
  nlohmann::json json = config_to_json(config);
  json.erase("name");
  json.erase("train");
  const std::string text = json.dump();  // keys are sorted, numbers as short as they can be
  return hash_bytes(text.data(), text.size());
}

ModelFingerprint compute_fingerprint(const ModelConfig& config, const Parameters& parameters) {
  ModelFingerprint result;
  result.config = config_fingerprint(config);
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    if (const uint64_t known = parameters.rounded_from(p); known != 0) {
      result.tensors.push_back(known);
      continue;
    }
    read_on_host(parameters.stored(p), [&](const View& host) {
      result.tensors.push_back(hash_wide(host.data, static_cast<size_t>(host.bytes())));
    });
  }
  return result;
}

std::string describe_difference(const ModelFingerprint& a, const ModelFingerprint& b,
                                std::span<const ParameterSpec> specs) {
  if (a.config != b.config) {
    return "the configs differ in more than name and train.*";
  }
  if (a.tensors.size() != b.tensors.size()) {
    return fmt::format("one has {} tensors, the other {}", a.tensors.size(), b.tensors.size());
  }
  require(specs.size() == a.tensors.size(), "fingerprint",
          "{} names were given for {} tensors; they are another model's", specs.size(),
          a.tensors.size());
  size_t differing = 0;
  std::string_view first;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (a.tensors[i] != b.tensors[i] && differing++ == 0) {
      first = specs[i].name;
    }
  }
  return differing == 0   ? ""
         : differing == 1 ? fmt::format("tensor {} differs", first)
                          : fmt::format("tensor {} differs, and {} more", first, differing - 1);
}

ModelFingerprint FingerprintOnce::get(const ModelConfig& config, const Parameters& parameters) {
  if (parameters.has_gradients()) {
    return compute_fingerprint(config, parameters);
  }
  std::call_once(once_, [&] { value_ = compute_fingerprint(config, parameters); });
  return value_;
}

}  // namespace fwpkm
