// Weights that stay in the file they were loaded from.
#include <gtest/gtest.h>

#include <fstream>

#include "memory_models.h"
#include "model/checkpoint.h"
#include "process.h"
#include "safetensors_file.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;
using Values = std::vector<double>;

// Every kind of mixer and of memory.
std::vector<TinyModel> all_models() {
  std::vector<TinyModel> models;
  for (const TinyModel& tiny : tiny_models()) {
    if (tiny.name == "gdn+swa|pkm@1" || tiny.name == "gdn+fa" || tiny.name == "lact") {
      models.push_back(tiny);
    }
  }
  for (const TinyModel& tiny : memory_models()) {
    if (tiny.name == "shared" || tiny.name == "pkm_fwpkm" || tiny.name == "fwmlp") {
      models.push_back(tiny);
    }
  }
  require(models.size() == 6, "test", "{} models have these names", models.size());
  return models;
}

ModelConfig memory_config() {
  return parse_config(memory_model({{"memory", "shared"}}), "test");
}

void save_random(const ModelConfig& config, const fs::path& folder, DType dtype = DType::kF32) {
  Model model(config, Device::cpu(), false);
  randomize(&model.parameters(), 7);
  save_model(model, folder, dtype);
}

size_t bytes_of_all(const Parameters& parameters) {
  size_t bytes = 0;
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    bytes += static_cast<size_t>(parameters.at(p).view().bytes());
  }
  return bytes;
}

std::vector<Values> values_of(const Model& model) {
  std::vector<Values> all;
  for (size_t p = 0; p < model.parameters().specs().size(); ++p) {
    all.push_back(to_host(model.parameters().at(p).view()));
  }
  return all;
}

// Logits of a stream: tokens at once, then one at a time, as in decoding.
std::vector<Values> logits_of(const Model& model) {
  Pool pool(model.parameters().device());
  pool.set_poison(true);
  Run run(pool);
  State state = model.start(run);
  ForwardOptions options;
  options.states = {&state};
  const auto tokens = tiny_tokens(20, model.config().vocab_size, 5);
  std::vector<Values> all;
  for (size_t at = 0, n = 13; at < tokens.size(); at += n, n = 1) {
    const Tensor piece = run.from_host("tokens", {1, static_cast<int64_t>(n)},
                                       std::span<const int32_t>(tokens).subspan(at, n));
    all.push_back(to_host(model.logits(run, model.hidden(run, piece, options)).view()));
  }
  return all;
}

// Writes the file again with its data at a byte that is `start` modulo 64.
void move_data(const fs::path& path, uint64_t start) {
  const std::string bytes = read_text(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  std::string header = bytes.substr(sizeof(length), length);
  header.erase(header.find_last_not_of(' ') + 1);
  while ((sizeof(length) + header.size()) % 64 != start) {
    header += ' ';
  }
  fs::remove(path);  // a new file, because the old one may be mapped
  write_safetensors(path, header, bytes.substr(sizeof(length) + length));
}

TEST(MappedWeights, AreUsedInPlaceAndGiveTheSameNumbers) {
  for (const TinyModel& tiny : all_models()) {
    SCOPED_TRACE(tiny.name);
    const TempDir dir;
    const ModelConfig config = parse_config(tiny.json, "test");
    for (const Device device : {Device::cpu(), Device::plain(), Device::reference()}) {
      save_random(config, dir / "m", device.real);
      const auto own = load_model(dir / "m", device, false, {}, Weights::kOwn);
      const auto mapped = load_model(dir / "m", device, false);
      EXPECT_EQ(own->parameters().mapped_bytes(), 0u);
      EXPECT_GE(own->parameters().value_bytes(), bytes_of_all(own->parameters()));
      EXPECT_EQ(mapped->parameters().mapped_bytes(), bytes_of_all(mapped->parameters()));
      EXPECT_EQ(mapped->parameters().value_bytes(), 0u);
      EXPECT_EQ(values_of(*mapped), values_of(*own));
      EXPECT_EQ(logits_of(*mapped), logits_of(*own));
      EXPECT_EQ(values_of(*mapped), values_of(*own));  // decoding wrote to none of them
    }
  }
}

// Kernels take weights at any multiple of the element's size, and no other address is mapped.
TEST(MappedWeights, MayLieAtAnyElement) {
  for (const TinyModel& tiny : all_models()) {
    SCOPED_TRACE(tiny.name);
    const TempDir dir;
    save_random(parse_config(tiny.json, "test"), dir / "m");
    const auto own = load_model(dir / "m", Device::cpu(), false, {}, Weights::kOwn);
    const std::vector<Values> expected = logits_of(*own);
    for (const uint64_t start : {4, 60, 8, 0, 2, 63}) {
      move_data(dir / "m/model.safetensors", start);
      const auto model = load_model(dir / "m", Device::cpu(), false);
      const bool mapped = start % 4 == 0;
      EXPECT_EQ(model->parameters().mapped(0), mapped) << start;
      EXPECT_EQ(model->parameters().mapped_bytes(), mapped ? bytes_of_all(model->parameters()) : 0u)
          << start;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(model->parameters().at(0).view().data) % 64,
                mapped ? start : 0);
      EXPECT_EQ(values_of(*model), values_of(*own)) << start;
      EXPECT_EQ(logits_of(*model), expected) << start;
    }
  }
}

// Only tensors of another type get memory.
TEST(MappedWeights, OtherTypesAreConverted) {
  const TempDir dir;
  const ModelConfig config = memory_config();
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    save_random(config, dir / "m", dtype);
    const auto model = load_model(dir / "m", Device::cpu(), false);
    EXPECT_EQ(model->parameters().mapped_bytes(), 0u);
    EXPECT_GT(model->parameters().value_bytes(), 0u);
  }
  save_random(config, dir / "f32");
  EXPECT_EQ(load_model(dir / "f32", Device::reference(), false)->parameters().mapped_bytes(), 0u);

  // Every third tensor in half the width; the odd number of them puts later ones off alignment.
  const SafeTensors from = SafeTensors::open(dir / "f32/model.safetensors");
  SafeTensorsWriter writer(dir / "m/model.safetensors");
  for (size_t i = 0; i < from.tensors().size(); ++i) {
    const TensorInfo& info = from.tensors()[i];
    writer.declare(info.name, i % 3 == 0 ? DType::kBF16 : DType::kF32, info.shape);
  }
  std::map<std::string, Values> expected;
  for (size_t i = 0; i < from.tensors().size(); ++i) {
    const TensorInfo& info = from.tensors()[i];
    Values values(info.count());
    from.read(info.name, values.data(), values.size());
    writer.append(info.name, std::span<const double>(values));
    for (double& x : values) {
      x = i % 3 == 0 ? bf16_to_float(float_to_bf16(static_cast<float>(x))) : x;
    }
    expected[info.name] = values;
  }
  writer.commit();
  const auto model = load_model(dir / "m", Device::cpu(), false);
  const SafeTensors file = SafeTensors::open(dir / "m/model.safetensors");
  const Parameters& p = model->parameters();
  size_t mapped = 0, memory = 0;
  for (size_t i = 0; i < p.specs().size(); ++i) {
    const std::string& name = p.specs()[i].name;
    const auto address = reinterpret_cast<uintptr_t>(file.data(name).data());
    const bool fits = file.info(name).dtype == DType::kF32 && address % sizeof(float) == 0;
    EXPECT_EQ(p.mapped(i), fits) << name;
    const auto bytes = static_cast<size_t>(p.at(i).view().bytes());
    (fits ? mapped : memory) += bytes;
    EXPECT_EQ(to_host(p.at(i).view()), expected[name]) << name;
  }
  EXPECT_EQ(p.mapped_bytes(), mapped);
  EXPECT_GT(mapped, 0u);
  EXPECT_GE(p.value_bytes(), memory);
  EXPECT_LT(p.value_bytes(), memory + p.specs().size() * 256 + 4096);  // padding
}

// A saved tensor that is whole cache lines lies on them.
TEST(MappedWeights, SavedMatricesAreAligned) {
  const TempDir dir;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    size_t whole = 0, others = 0;
    for (const TinyModel& tiny : all_models()) {
      save_random(parse_config(tiny.json, "test"), dir / "m", dtype);
      const SafeTensors file = SafeTensors::open(dir / "m/model.safetensors");
      for (const TensorInfo& info : file.tensors()) {
        const bool aligned = reinterpret_cast<uintptr_t>(file.data(info.name).data()) % 64 == 0;
        const bool full = (info.end - info.begin) % 64 == 0;
        EXPECT_TRUE(aligned || !full) << tiny.name << ' ' << info.name;
        ++(full ? whole : others);
      }
    }
    EXPECT_GT(whole, 0u);
    EXPECT_GT(others, 0u);
  }
}

TEST(MappedWeights, OutliveTheirFile) {
  const TempDir dir;
  save_random(memory_config(), dir / "m");
  const auto model = load_model(dir / "m", Device::cpu(), false);
  const std::vector<Values> before = values_of(*model), logits = logits_of(*model);
  save_model(*model, dir / "m", DType::kBF16);  // over the file it runs from
  EXPECT_EQ(values_of(*model), before);
  fs::remove_all(dir / "m");
  EXPECT_EQ(values_of(*model), before);
  EXPECT_EQ(logits_of(*model), logits);
}

TEST(MappedWeights, CannotBeWritten) {
  const TempDir dir;
  const ModelConfig config = memory_config();
  save_random(config, dir / "m");
  const auto model = load_model(dir / "m", Device::cpu(), false);
  Parameters& parameters = model->parameters();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(*parameters.at(0).view().ptr<float>() = 1, "");
  expect_error([&] { parameters.initialize(1); }, "model.embed_tokens.weight is read-only",
               "model.safetensors", "weights of its own");
  expect_error([&] { parameters.writable("model.norm.weight"); }, "model.norm.weight is read-only");
  const SafeTensors other = SafeTensors::open(dir / "m/model.safetensors");
  expect_error([&] { load_parameters(other, "", config, &parameters); }, "is read-only");

  // What a run of whole sequences wrote is not kept, and that is said.
  Pool pool(Device::cpu());
  std::vector<MemoryRecord> records;
  ForwardOptions options;
  options.records = &records;
  fwpkm::Run run(pool);
  const auto tokens = tiny_tokens(20, config.vocab_size, 5);
  model->hidden(run, run.from_host("tokens", {1, 20}, tokens), options);
  expect_error([&] { commit(records, config, &parameters); }, "fwpkm.keys is read-only");

  expect_error(
      [&] {
        Parameters(
            config, Device::cpu(), true, false,
            std::make_shared<const SafeTensors>(SafeTensors::open(dir / "m/model.safetensors")));
      },
      "weights that get gradients", "model.safetensors");
}

TEST(MappedWeights, WeightsOfItsOwnCanBeWritten) {
  const TempDir dir;
  save_random(memory_config(), dir / "m");
  const std::string before = read_text(dir / "m/model.safetensors");
  for (const bool gradients : {false, true}) {
    const auto model = load_model(dir / "m", Device::cpu(), gradients, {},
                                  gradients ? Weights::kMapped : Weights::kOwn);
    EXPECT_EQ(model->parameters().mapped_bytes(), 0u);
    EXPECT_EQ(model->parameters().has_gradients(), gradients);
    model->parameters().initialize(1);
    *model->parameters().writable("model.norm.weight").ptr<float>() = 5;
  }
  EXPECT_EQ(read_text(dir / "m/model.safetensors"), before);
}

// `fwpkm run` keeps what memories write, in the dump and nowhere else.
TEST(MappedWeights, RunCommandWritesFastWeights) {
  const TempDir dir;
  save_random(memory_config(), dir / "m");
  const std::string before = read_text(dir / "m/model.safetensors");
  write_text_atomic(dir / "tokens", "1 2 3 4 5 6 7 8 9 10 11 12\n");
  const ProcessResult result =
      run_program("run --model " + (dir / "m").string() + " --tokens " + (dir / "tokens").string() +
                  " --dump " + (dir / "dump").string());
  EXPECT_EQ(result.status, 0) << result.err;
  const SafeTensors dump = SafeTensors::open(dir / "dump"),
                    model = SafeTensors::open(dir / "m/model.safetensors");
  const std::string name = "model.layers.1.fwpkm.values";
  const auto after = dump.data("fast_after." + name), start = model.data(name);
  EXPECT_FALSE(std::equal(after.begin(), after.end(), start.begin(), start.end()));
  EXPECT_EQ(read_text(dir / "m/model.safetensors"), before);
}

}  // namespace
}  // namespace fwpkm
