// Session: loading a file, using what was loaded, and saving it again.
//
// First byte:
//   0  the rest is a file
//   1  the same, with the front's lengths and the header's checksum repaired
//   2  the rest changes a good file, whose checksums are then made anew: a JSON merge patch for the
//      header (its length as a word, then the text), then edits of sections: number, place (a
//      word), length, bytes. A length above 250 cuts the section off there, or makes it longer.
#include "base/hash.h"
#include "base/parallel.h"
#include "fuzz.h"
#include "session/section_file.h"
#include "session/session.h"

namespace fwpkm::fuzz {
namespace {

constexpr const char* kFormat = "fwpkm session";
constexpr const char* kConfig = R"({"name":"fuzz","vocab_size":11,"hidden_size":8,"layers":3,
"mixers":["gdn","swa","fa"],"max_seq":64,
"attention":{"heads":2,"kv_heads":1,"head_dim":4,"window":3,"rotary_fraction":0.5},
"gdn":{"key_heads":1,"value_heads":1,"key_dim":4,"value_dim":4,"conv":2},"mlp":{"hidden":8},
"fwpkm":{"layers":[1],"topk":2,"n_subkeys":3,"key_dim":4,"value_dim":4,"chunk":4},
"fwmlp":{"layers":[2],"key_dim":4,"value_dim":4,"hidden":4,"chunk":4}})";

std::shared_ptr<const Model> make_model() {
  set_threads(1);
  auto model = std::make_shared<Model>(parse_config(nlohmann::json::parse(kConfig), "fuzz"),
                                       Device::cpu(), false);
  model->parameters().initialize(1);
  return model;
}

const std::shared_ptr<const Model>& model() {
  static const std::shared_ptr<const Model> one = make_model();
  return one;
}

struct Good {
  nlohmann::json about;
  std::vector<std::pair<std::string, std::string>> sections;
};

// A session with a mark, in pieces.
const Good& good() {
  static const Good one = [] {
    Session session(model());
    session.feed(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7});
    session.mark("m");
    session.feed(std::vector<int32_t>{8, 9, 10, 1, 3, 5});
    const auto path = scratch() / "good";
    session.save(path);
    SectionReader file(path, kFormat, 1, "a session");
    Good parts{file.about(), {}};
    for (const std::string& name : file.names()) {
      const auto bytes = file.section(name);
      parts.sections.emplace_back(
          name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
    return parts;
  }();
  return one;
}

void write_changed(const std::filesystem::path& path, Input in) {
  Good parts = good();
  const nlohmann::json patch = nlohmann::json::parse(in.text(in.word()), nullptr, false);
  if (!patch.is_discarded()) {
    parts.about.merge_patch(patch);
  }
  for (int edits = 0; edits < 16; ++edits) {
    const size_t section = in.byte(), at = in.word(), length = in.byte();
    std::string& bytes = parts.sections[section % parts.sections.size()].second;
    if (length > 250) {
      bytes.resize(at % 4096);
      continue;
    }
    const std::string data = in.text(length);
    if (data.empty()) {
      break;
    }
    const size_t place = bytes.empty() ? 0 : at % bytes.size();
    bytes.replace(place, std::min(data.size(), bytes.size() - place),
                  data.substr(0, bytes.size() - place));
  }
  SectionWriter writer;
  for (const auto& section : parts.sections) {
    const bool mapped =
        section.first.starts_with("rows.") || section.first.starts_with("histories.");
    const std::string& bytes = section.second;
    writer.add(
        section.first,
        [&bytes](const SectionWriter::Sink& sink) { sink(bytes.data(), bytes.size()); }, mapped);
  }
  writer.write(path, kFormat, 1, parts.about);
}

std::string repaired(std::string file) {
  if (file.size() >= 64) {
    const uint64_t header = std::min<uint64_t>(load<uint64_t>(file, 24), file.size() - 64);
    Checksum sum;
    sum.add(file.data() + 64, header);
    store<uint64_t>(file, 16, 1);
    store<uint64_t>(file, 24, header);
    store<uint64_t>(file, 32, sum.value());
    store<uint64_t>(file, 40, file.size());
  }
  return file;
}

void use(Session& session) {
  const auto first = scratch() / "first", second = scratch() / "second";
  session.save(first);
  Session again = Session::load(model(), first);
  again.save(second);
  check(read_text(first) == read_text(second), "a session that is saved and loaded is the same");
  for (const std::string& mark : session.marks()) {
    session.at_mark(mark).feed(std::vector<int32_t>{1});
  }
  Session::diff(again, session);
  session.feed(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  session.logits();
  session.flush();
  for (const int32_t slot : session.written(1)) {
    session.history(1, slot);
    session.forget(1, slot);
  }
  check(session.slots(1) == 0, "all slots can be forgotten");
}

void target(Input in) {
  const uint8_t mode = in.byte();
  const auto path = scratch() / "input";
  if (mode == 2) {
    write_changed(path, std::move(in));
  } else {
    scratch().write("input", mode == 1 ? repaired(in.rest()) : in.rest());
  }
  auto session = accepted([&] { return Session::load(model(), path); });
  if (session) {
    use(*session);
  }
}

}  // namespace
}  // namespace fwpkm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fwpkm::fuzz::run(data, size, fwpkm::fuzz::target);
}
