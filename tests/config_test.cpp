#include "model/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "base/json_fields.h"

namespace fwpkm {
namespace {

using nlohmann::json;

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The message must hold every part.
void expect_error(const std::function<void()>& run, std::initializer_list<std::string> parts) {
  const std::string message = error_of(run);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "wanted: " << part << "\ngot:    " << message;
  }
}

ModelConfig parse(const json& file, std::vector<std::string> overrides = {}) {
  return parse_config(file, "m.json", overrides);
}

json small() {
  return json::parse(R"({
    "name": "small", "vocab_size": 61, "hidden_size": 40, "layers": 4, "layout": "gdn+swa",
    "max_seq": 128,
    "attention": {"heads": 4, "kv_heads": 2, "head_dim": 16, "window": 8},
    "gdn": {"key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 12, "conv": 4},
    "mlp": {"hidden": 56},
    "pkm": {"layers": [2], "heads": 2, "topk": 3, "n_subkeys": 6, "key_dim": 16, "value_dim": 20},
    "fwpkm": {"layers": [1, 3], "topk": 4, "n_subkeys": 8, "key_dim": 16, "value_dim": 24,
              "chunk": 16}
  })");
}

std::filesystem::path write_file(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(Config, ReadsOurFormat) {
  const ModelConfig c = parse(small());
  EXPECT_EQ(c.name, "small");
  EXPECT_EQ(c.hidden_size, 40);
  EXPECT_EQ(c.fwpkm.layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(c.fwpkm.slots(), 64);
  EXPECT_EQ(c.rotary_dim(), 4);
  EXPECT_EQ(c.yarn_length(), 128);
  EXPECT_EQ(c.train.seq, 128);  // follows max_seq
  EXPECT_EQ(c.memory, MemoryMode::kPerSequence);
  EXPECT_EQ(c.carry, Carry::kSequence);
  EXPECT_EQ(c.value_step.kind, ValueStep::Kind::kSlots);
  EXPECT_EQ(c.compat, Compat::kNone);
  EXPECT_FALSE(c.official);
  EXPECT_TRUE(c.has_pkm(2) && !c.has_pkm(1) && c.has_fwpkm(3) && !c.has_fwpkm(2));
  EXPECT_FALSE(c.has_fwmlp(1));
}

TEST(Config, MissingKeysTakeThePapersValues) {
  const ModelConfig c = parse({{"name", "x"}});
  EXPECT_EQ(c.vocab_size, 32000);
  EXPECT_EQ(c.layers, 12);
  EXPECT_EQ(c.mlp.hidden, 2304);
  EXPECT_EQ(c.train.max_lr, 1e-3);
  EXPECT_EQ(c.train.seq, 4096);
  EXPECT_EQ(c.train.micro(), 8);
}

TEST(Config, LayoutsPlaceAttentionFourth) {
  const auto mixers = [](const std::string& layout) {
    const ModelConfig c = parse({{"name", "x"}, {"layout", layout}});
    std::vector<Mixer> list;
    for (int layer = 0; layer < 8; ++layer) {
      list.push_back(c.mixer(layer));
    }
    return list;
  };
  const Mixer g = Mixer::kGdn, s = Mixer::kSwa, f = Mixer::kFa;
  EXPECT_EQ(mixers("gdn"), (std::vector<Mixer>{g, g, g, g, g, g, g, g}));
  EXPECT_EQ(mixers("gdn+swa"), (std::vector<Mixer>{g, g, g, s, g, g, g, s}));
  EXPECT_EQ(mixers("gdn+fa"), (std::vector<Mixer>{g, g, g, f, g, g, g, f}));
  EXPECT_EQ(mixers("fa"), (std::vector<Mixer>{f, f, f, f, f, f, f, f}));
}

TEST(Config, MixersTakeThePlaceOfLayout) {
  json file = small();
  file["mixers"] = {"fa", "swa", "gdn", "gdn"};
  EXPECT_EQ(parse(file).mixer(0), Mixer::kFa);
  EXPECT_EQ(parse(file).mixer(1), Mixer::kSwa);
  EXPECT_EQ(row_name(parse(file)), "gdn+swa+fa|pkm@2+fwpkm@1,3");
  file["mixers"] = {"fa"};
  expect_error([&] { parse(file); }, {"mixers has 1 entries for layers=4", "m.json"});
  file["mixers"] = {"fa", "fa", "fa", "lact"};
  expect_error([&] { parse(file); }, {"m.json: mixers must be list of \"gdn\" | \"swa\" | \"fa\""});
}

TEST(Config, RoundTripsThroughJson) {
  for (const json& step : {json("slots"), json("paper"), json("rewrite"), json(0.3)}) {
    json file = small();
    file["value_step"] = step;
    file["mixers"] = {"fa", "swa", "gdn", "gdn"};
    file["fwpkm"]["score"] = "dot";
    file["train"] = {{"seq", 64}, {"beta2", 0.1 + 0.2}};
    const ModelConfig c = parse(file);
    const json written = config_to_json(c);
    EXPECT_EQ(parse(json::parse(written.dump())), c);
    EXPECT_EQ(config_to_json(parse(written)), written);
  }
}

TEST(Config, OverridesUseDottedKeys) {
  const ModelConfig c =
      parse(small(), {"fwpkm.topk=8", "name=7", "pkm.layers=0,2", "fwpkm.layers=[3]",
                      "train.max_lr=2e-3", "fwpkm.gating=false", "layout=fa", "value_step=0.5",
                      "memory=shared", "max_seq=256", "mixers=", "fwpkm.topk=2"});
  EXPECT_EQ(c.fwpkm.topk, 2);  // the last one wins
  EXPECT_EQ(c.name, "7");
  EXPECT_EQ(c.pkm.layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(c.fwpkm.layers, (std::vector<int64_t>{3}));
  EXPECT_EQ(c.train.max_lr, 2e-3);
  EXPECT_FALSE(c.fwpkm.gating);
  EXPECT_EQ(c.layout, Layout::kFa);
  EXPECT_EQ(c.value_step.kind, ValueStep::Kind::kNumber);
  EXPECT_EQ(c.value_step.number, 0.5);
  EXPECT_EQ(c.memory, MemoryMode::kShared);
  EXPECT_EQ(c.train.seq, 256);
  EXPECT_EQ(parse(small(), {"max_seq=256", "train.seq=32"}).train.seq, 32);
  EXPECT_TRUE(parse(small(), {"pkm.layers="}).pkm.layers.empty());
  EXPECT_EQ(parse(small(), {"mixers=fa,fa,swa,gdn"}).mixer(2), Mixer::kSwa);
}

TEST(Config, OverrideErrors) {
  const auto with = [](const std::string& text) { return [text] { parse(small(), {text}); }; };
  expect_error(with("fwpkm.topkk=8"), {"unknown key \"fwpkm.topkk\"", "\"fwpkm.topk\"?"});
  expect_error(with("topk"), {"\"topk\" is not key=value"});
  expect_error(with("=3"), {"is not key=value"});
  expect_error(with("fwpkm.topk="), {"must be integer, got \"\""});
  expect_error(with("fwpkm.topk=eight"), {"must be integer, got \"eight\""});
  expect_error(with("fwpkm.topk=2.5"), {"must be integer, got 2.5"});
  expect_error(with("train.max_lr=nan"), {"must be number, got \"nan\""});
  expect_error(with("fwpkm.gating=yes"), {"must be true or false"});
  expect_error(with("layout=swa"), {"\"gdn+swa\"", "got \"swa\""});
  expect_error(with("pkm.layers=2,x"), {"pkm.layers must be list of integer"});
  expect_error(with("pkm.layers=[2"), {"pkm.layers must be list of integer"});
  expect_error(with("fwpkm={}"), {"unknown key \"fwpkm\""});
  expect_error(with("fwpkm.topk=64"), {"[fwpkm] topk=64 exceeds n_subkeys=8; lower fwpkm.topk"});
  expect_error(with("num_hidden_layers=3"), {"unknown key"});
}

TEST(Config, UnknownKeysNameTheNearest) {
  json file = small();
  file["fwpkm"]["top_k"] = 8;
  expect_error([&] { parse(file); },
               {"m.json: unknown key \"fwpkm.top_k\"; did you mean \"fwpkm.topk\"?"});
  file = small();
  file["hiden_size"] = 8;
  expect_error([&] { parse(file); }, {"\"hiden_size\"; did you mean \"hidden_size\"?"});
  file = small();
  file["topk"] = 8;
  expect_error([&] { parse(file); }, {"unknown key \"topk\"", ".topk\"?"});
  file = small();
  file["fwpkm.topk"] = 8;
  expect_error([&] { parse(file); }, {"unknown key \"fwpkm.topk\"", "nests"});
  file = small();
  file["num_hidden_layers"] = 8;
  expect_error([&] { parse(file); }, {"\"num_hidden_layers\"", "authors' format", "model_type"});
  file = small();
  file[""] = 1;
  expect_error([&] { parse(file); }, {"unknown key \"\""});
}

// One bad value in the small config: where it goes, what it is, what the message holds.
struct Bad {
  const char* pointer;
  json value;
  std::vector<std::string> parts;
};

TEST(Config, WrongValues) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Bad cases[] = {
      {"/name", "", {"name=\"\" must be not empty"}},
      {"/name", 3, {"m.json: name must be string, got 3"}},
      {"/layers", "four", {"layers must be integer, got \"four\""}},
      {"/layers", 4.5, {"layers must be integer, got 4.5"}},
      {"/layers", 0, {"[config] layers=0 must be 1..4096", "m.json"}},
      {"/layers", -1, {"layers=-1 must be"}},
      {"/layers", nullptr, {"layers must be integer, got null"}},
      {"/hidden_size", 1 << 17, {"hidden_size=131072 must be 1..65536"}},
      {"/hidden_size", 18446744073709551615u, {"hidden_size must be integer"}},
      {"/hidden_size", 1e300, {"hidden_size must be integer"}},
      {"/vocab_size", true, {"vocab_size must be integer, got true"}},
      {"/norm_eps", 0, {"norm_eps=0.0 must be above 0"}},
      {"/norm_eps", -1e-5, {"norm_eps=-1e-05 must be above 0"}},
      {"/norm_eps", nan, {"norm_eps must be number"}},
      {"/norm_eps", "1e-5", {"norm_eps must be number, got \"1e-5\""}},
      {"/layout", "sliding", {"layout must be \"gdn\" | \"gdn+swa\"", "got \"sliding\""}},
      {"/layout", 1, {"layout must be"}},
      {"/memory", "private", {"memory must be \"shared\" | \"per_sequence\""}},
      {"/carry", "always", {"carry must be"}},
      {"/compat", "theirs", {"compat must be \"none\" | \"official\""}},
      {"/value_step", "big", {"value_step must be", "got \"big\""}},
      {"/value_step", 0, {"value_step=0.0 must be"}},
      {"/value_step", -1, {"value_step=-1.0 must be"}},
      {"/bptt_chunks", -1, {"bptt_chunks=-1"}},
      {"/max_seq", 0, {"max_seq=0"}},
      {"/mixers", "gdn", {"mixers must be list of"}},
      {"/fwpkm", 3, {"m.json: fwpkm must be an object with keys, got 3"}},
      {"/attention", nullptr, {"attention must be an object"}},
      {"/attention/kv_heads", 3, {"[attention] heads=4 is not a multiple of kv_heads=3"}},
      {"/attention/head_dim", 12, {"rotates 3 features, an odd number"}},
      {"/attention/window", 0, {"[attention] window=0"}},
      {"/attention/rotary_fraction", 1.5, {"rotary_fraction=1.5 must be 0..1"}},
      {"/attention/yarn_factor", 0.5, {"yarn_factor=0.5 must be 1.."}},
      {"/attention/rope_theta", 0, {"rope_theta=0.0"}},
      {"/gdn/value_heads", 3, {"[gdn] value_heads=3 is not a multiple of key_heads=2"}},
      {"/gdn/conv", 0, {"[gdn] conv=0"}},
      {"/mlp/hidden", 0, {"[mlp] hidden=0"}},
      {"/pkm/topk", 7, {"[pkm] topk=7 exceeds n_subkeys=6; lower pkm.topk"}},
      {"/pkm/key_dim", 15, {"[pkm] key_dim=15 is odd", "change pkm.key_dim"}},
      {"/pkm/layers", {2, 2}, {"[pkm] layers has 2 twice"}},
      {"/pkm/layers", {4}, {"[pkm] layers has 4, but layers are counted from 0 to 3"}},
      {"/pkm/layers", {-1}, {"[pkm] layers has -1"}},
      {"/pkm/layers", {1.5}, {"pkm.layers must be list of integer"}},
      {"/pkm/layers", 2, {"pkm.layers must be list of integer"}},
      {"/pkm/heads", 0, {"[pkm] heads=0"}},
      {"/fwpkm/topk", 0, {"[fwpkm] topk=0 must be 1..65536; change fwpkm.topk (m.json)"}},
      {"/fwpkm/topk", 9, {"[fwpkm] topk=9 exceeds n_subkeys=8; lower fwpkm.topk"}},
      {"/fwpkm/key_dim", 7, {"[fwpkm] key_dim=7 is odd"}},
      {"/fwpkm/layers", {1, 3, 1}, {"[fwpkm] layers has 1 twice"}},
      {"/fwpkm/layers", {9}, {"[fwpkm] layers has 9"}},
      {"/fwpkm/chunk", 0, {"[fwpkm] chunk=0"}},
      {"/fwpkm/lookahead", -1, {"[fwpkm] lookahead=-1"}},
      {"/fwpkm/value_dim", 1, {"[fwpkm] value_norm needs value_dim of 2 or more"}},
      {"/fwpkm/score", "cosine", {"fwpkm.score must be \"idw\" | \"dot\""}},
      {"/fwpkm/gating", 1, {"fwpkm.gating must be true or false"}},
      {"/fwpkm/addr_weight", -1, {"[fwpkm] addr_weight=-1.0"}},
      {"/fwmlp/layers", {1}, {"[fwmlp] layer 1 has a FwPKM too"}},
      {"/fwmlp/lr", -0.1, {"[fwmlp] lr=-0.1"}},
      {"/train/min_lr", 1, {"[train] min_lr=1 exceeds max_lr=0.001"}},
      {"/train/batch", 12, {"[train] batch=12 is not a multiple of micro_batch=8"}},
      {"/train/pswa_prob", 2, {"[train] pswa_prob=2.0 must be 0..1"}},
      {"/train/steps", 0, {"[train] steps=0"}},
      {"/train/seed", -1, {"[train] seed=-1"}},
      {"/architecture", "lact", {"[lact]"}},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.pointer);
    json file = small();
    file[json::json_pointer(bad.pointer)] = bad.value;
    for (const std::string& part : bad.parts) {
      expect_error([&] { parse(file); }, {part, "m.json"});
    }
  }
}

TEST(Config, NameIsRequired) {
  json file = small();
  file.erase("name");
  expect_error([&] { parse(file); }, {"m.json: key \"name\" is missing"});
}

TEST(Config, WholeNumbersMayBeWrittenAsReals) {
  json file = small();
  file["hidden_size"] = 40.0;
  EXPECT_EQ(parse(file).hidden_size, 40);
}

TEST(Config, HugeModelsAreRefusedWithoutOverflow) {
  json file = small();
  file["fwpkm"]["n_subkeys"] = 1 << 16;
  file["fwpkm"]["value_dim"] = 1 << 16;
  expect_error([&] { parse(file); }, {"parameters, more than the limit of 2^40", "m.json"});
  // Every size at its bound: the count still fits 64 bits.
  ModelConfig c = parse(small());
  c.layers = 1 << 12;
  c.hidden_size = 1 << 16;
  c.vocab_size = 1 << 24;
  c.layout = Layout::kFa;
  c.attention.heads = c.attention.kv_heads = 1 << 10;
  c.attention.head_dim = 1 << 13;
  c.mlp.hidden = 1 << 20;
  c.pkm.layers.clear();
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    c.pkm.layers.push_back(layer);
  }
  c.pkm.heads = 1 << 10;
  c.pkm.n_subkeys = c.pkm.key_dim = c.pkm.value_dim = 1 << 16;
  c.fwpkm.layers = c.pkm.layers;
  c.fwpkm.heads = c.pkm.heads;
  c.fwpkm.n_subkeys = c.fwpkm.key_dim = c.fwpkm.value_dim = 1 << 16;
  expect_error([&] { validate(c, "big"); }, {"limit of 2^40", "(big)"});
}

TEST(Config, LactNeedsSquareAttention) {
  json file = json::parse(R"({"name": "l", "architecture": "lact", "hidden_size": 96, "layers": 2,
      "attention": {"heads": 6, "kv_heads": 6, "head_dim": 16}, "lact": {"heads": 2}})");
  EXPECT_EQ(parse(file).mixer(1), Mixer::kLact);
  EXPECT_EQ(row_name(parse(file)), "lact");
  expect_error([&] { parse(file, {"attention.kv_heads=3"}); }, {"set attention.kv_heads=6"});
  expect_error([&] { parse(file, {"attention.heads=12"}); }, {"do not make hidden_size=96"});
  expect_error([&] { parse(file, {"lact.heads=5"}); }, {"does not divide hidden_size=96"});
  expect_error([&] { parse(file, {"train.hide_borders=true"}); }, {"train.hide_borders=false"});
  expect_error([&] { parse(file, {"fwpkm.layers=1"}); }, {"no pkm, fwpkm or fwmlp"});
  expect_error([&] { parse(file, {"mixers=fa,fa"}); }, {"[lact] mixers"});
}

TEST(Config, Files) {
  const auto good = write_file("config_good.json", small().dump(2));
  EXPECT_EQ(load_config(good).name, "small");
  const std::vector<std::string> overrides{"fwpkm.topk=5"};
  EXPECT_EQ(load_config(good, overrides).fwpkm.topk, 5);
  expect_error([] { load_config("no/such.json"); }, {"no/such.json cannot be opened"});
  expect_error([] { load_config(testing::TempDir()); }, {"is a directory"});
  const std::pair<const char*, const char*> broken[] = {
      {"", "not valid JSON: parse error at line 1, column 1"},
      {"{\n  \"name\": \"x\",\n}", "parse error at line 3, column 1"},
      {"{\"name\": \"x\"} more", "parse error at line 1"},
      {"{\"norm_eps\": NaN}", "parse error at line 1"},
      {"{\"norm_eps\": 1e999}", "number overflow"},
      {"\xff\xfe", "not valid JSON"},
      {"[1, 2]", "a config is a JSON object, got [1,2]"},
      {"{\"name\": \"x\", \"name\": \"y\"}", "key \"name\" is given twice"},
      {"{\"name\": \"x\", \"mlp\": {\"hidden\": 8, \"hidden\": 9}}", "\"hidden\" is given twice"},
  };
  for (const auto& [text, part] : broken) {
    const auto file = write_file("config_broken.json", text);
    expect_error([&] { load_config(file); }, {"config_broken.json: ", part});
  }
}

TEST(Config, HelpListsEveryKey) {
  const std::string help = std::string("\n").append(config_help());
  const json all = config_to_json(ModelConfig{});
  for (const auto& [name, value] : all.items()) {
    if (!value.is_object()) {
      EXPECT_NE(help.find(fmt::format("\n{} ", name)), std::string::npos) << name;
      continue;
    }
    for (const auto& entry : value.items()) {
      EXPECT_NE(help.find(fmt::format("\n{}.{} ", name, entry.key())), std::string::npos) << name;
    }
  }
  EXPECT_NE(help.find("default 8]"), std::string::npos);
}

TEST(Config, ThePageOfKeysIsUpToDate) {
  std::ifstream page(std::string(FWPKM_CONFIGS) + "/../docs/config.md");
  const std::string text((std::istreambuf_iterator<char>(page)), {});
  EXPECT_NE(text.find(config_help()), std::string::npos) << "docs/config.md must hold:\n"
                                                         << config_help();
}

// Files made to use up the stack or the reader's patience.
TEST(Config, HostileFiles) {
  const auto nested = [](size_t levels) {
    return "{\"name\":" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  expect_error([&] { parse_config(parse_json_text(nested(60), "m.json"), "m.json"); },
               {"m.json: name must be string, got [[["});
  expect_error([&] { parse_json_text(nested(1000000), "m.json"); },
               {"m.json: nested deeper than 64 levels"});
  const std::string key = "vocab_size" + std::string(16 << 20, 'x');
  expect_error(
      [&] {
        parse_config({{"name", "x"}, {key, 1}}, "m.json");
      },
      {"m.json: unknown key \"vocab_sizexxx", "did you mean"});
}

TEST(Config, NearestKey) {
  EXPECT_EQ(nearest_key("fwpkm.look_ahead", {"fwpkm.layers", "fwpkm.lookahead"}),
            "fwpkm.lookahead");
  EXPECT_EQ(nearest_key("kv_heads", {"layers", "attention.kv_heads"}), "attention.kv_heads");
  EXPECT_EQ(nearest_key("x", {}), "");
}

}  // namespace
}  // namespace fwpkm
