// Files that must be read and written. Bad files are in safetensors_bad_test.cpp.
#include "tensor/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "safetensors_file.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<std::byte> copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

const std::vector<double>& special_doubles() {
  using Limits = std::numeric_limits<double>;
  static const std::vector<double> values = {0.0,
                                             -0.0,
                                             1.0,
                                             -1.5,
                                             0.1,
                                             Limits::infinity(),
                                             -Limits::infinity(),
                                             Limits::quiet_NaN(),
                                             Limits::denorm_min(),
                                             -Limits::denorm_min(),
                                             Limits::min(),
                                             Limits::max(),
                                             1e-40,
                                             6e-8,
                                             65504.0,
                                             65520.0};
  return values;
}

TEST(SafeTensors, FloatTypesRoundTripWithSpecialValues) {
  const TempDir dir;
  const std::vector<double>& doubles = special_doubles();
  const std::vector<float> floats(doubles.begin(), doubles.end());
  const std::vector<DType> types = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  const auto shape = std::vector<int64_t>{4, 4};
  SafeTensorsWriter writer(dir / "a.safetensors");
  for (const DType type : types) {
    writer.declare("double." + std::string(dtype_name(type)), type, shape);
    writer.declare("float." + std::string(dtype_name(type)), type, shape);
  }
  for (const DType type : types) {
    writer.append("double." + std::string(dtype_name(type)), std::span(doubles));
    writer.append("float." + std::string(dtype_name(type)), std::span(floats));
  }
  writer.commit();

  const SafeTensors file = SafeTensors::open(dir / "a.safetensors");
  EXPECT_EQ(copy(file.data("double.F64")), copy(bytes_of(doubles)));
  EXPECT_EQ(copy(file.data("double.F32")), copy(bytes_of(floats)));
  EXPECT_EQ(copy(file.data("float.F32")), copy(bytes_of(floats)));
  for (const DType type : types) {
    for (const bool from_float : {false, true}) {
      const std::string name = (from_float ? "float." : "double.") + std::string(dtype_name(type));
      EXPECT_EQ(file.info(name).dtype, type);
      EXPECT_EQ(file.info(name).shape, shape);
      std::vector<double> as_double(doubles.size());
      std::vector<float> as_float(doubles.size());
      file.read(name, as_double.data(), as_double.size());
      file.read(name, as_float.data(), as_float.size());
      for (size_t i = 0; i < doubles.size(); ++i) {
        const double source = from_float ? floats[i] : doubles[i];
        double expected = source;
        if (type == DType::kF32) {
          expected = static_cast<float>(source);
        } else if (type == DType::kF16) {
          expected = f16_to_float(float_to_f16(static_cast<float>(source)));
        } else if (type == DType::kBF16) {
          expected = bf16_to_float(float_to_bf16(static_cast<float>(source)));
        }
        SCOPED_TRACE(name + " of " + std::to_string(source));
        EXPECT_EQ(std::signbit(as_double[i]), std::signbit(source));
        if (std::isnan(source)) {
          EXPECT_TRUE(std::isnan(as_double[i]) && std::isnan(as_float[i]));
        } else {
          EXPECT_EQ(as_double[i], expected);
          EXPECT_EQ(as_float[i], static_cast<float>(expected));
        }
      }
    }
  }
}

// Every bit pattern of the 16-bit types, as raw bytes and as floats.
TEST(SafeTensors, AllSixteenBitPatternsRoundTrip) {
  const TempDir dir;
  std::vector<uint16_t> patterns(65536);
  std::iota(patterns.begin(), patterns.end(), uint16_t{0});
  for (const DType type : {DType::kF16, DType::kBF16}) {
    SafeTensorsWriter raw(dir / "raw");
    raw.declare("x", type, {256, 256});
    raw.append_raw("x", bytes_of(patterns));
    raw.commit();
    const SafeTensors file = SafeTensors::open(dir / "raw");
    EXPECT_EQ(copy(file.data("x")), copy(bytes_of(patterns)));

    std::vector<float> values(patterns.size());
    file.read("x", values.data(), values.size());
    SafeTensorsWriter again(dir / "again");
    again.declare("x", type, {256, 256});
    again.append("x", std::span<const float>(values));
    again.commit();
    const SafeTensors second = SafeTensors::open(dir / "again");
    std::vector<uint16_t> result(patterns.size());
    std::memcpy(result.data(), second.data("x").data(), result.size() * 2);
    for (size_t i = 0; i < patterns.size(); ++i) {
      const uint16_t quiet = type == DType::kF16 ? 0x200 : 0x40;
      ASSERT_EQ(result[i], std::isnan(values[i]) ? patterns[i] | quiet : patterns[i]);
    }
  }
}

TEST(SafeTensors, IntegerTypesRoundTrip) {
  const TempDir dir;
  const std::vector<std::pair<DType, std::vector<int64_t>>> cases = {
      {DType::kI64, {INT64_MIN, -1, 0, 1, INT64_MAX}},
      {DType::kI32, {INT32_MIN, -1, 0, INT32_MAX}},
      {DType::kI16, {-32768, -1, 0, 32767}},
      {DType::kI8, {-128, -1, 0, 127}},
      {DType::kU8, {0, 1, 128, 255}},
      {DType::kBool, {0, 1, 1, 0, 1}},
  };
  SafeTensorsWriter writer(dir / "a");
  for (const auto& [type, values] : cases) {
    writer.declare(std::string(dtype_name(type)), type, {static_cast<int64_t>(values.size())});
  }
  for (const auto& [type, values] : cases) {
    writer.append(dtype_name(type), std::span(values));
  }
  writer.commit();
  const SafeTensors file = SafeTensors::open(dir / "a");
  for (const auto& [type, values] : cases) {
    std::vector<int64_t> integers(values.size());
    file.read_as_i64(dtype_name(type), integers.data(), integers.size());
    EXPECT_EQ(integers, values) << dtype_name(type);
    std::vector<double> doubles(values.size());
    file.read(dtype_name(type), doubles.data(), doubles.size());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(doubles[i], static_cast<double>(values[i]));
    }
  }
}

TEST(SafeTensors, OddSizesInPiecesMisalignedAndEmpty) {
  const TempDir dir;
  const size_t large = 3 * 8192 + 1;
  std::vector<float> values(large);
  for (size_t i = 0; i < large; ++i) {
    values[i] = static_cast<float>(i) * 0.25f - 100;
  }
  const std::vector<int64_t> one = {1};
  SafeTensorsWriter writer(dir / "a");
  writer.declare("empty.first", DType::kF64, {0});
  writer.declare("flag", DType::kBool, {1});
  writer.declare("wide", DType::kF64, {static_cast<int64_t>(large)});  // at an odd offset
  writer.declare("scalar", DType::kF32, {});
  writer.declare("empty", DType::kI32, {3, 0, 5});
  writer.declare("byte", DType::kU8, {1, 1, 1, 1, 1, 1, 1, 1});
  writer.declare("half", DType::kF16, {3});
  writer.declare("empty.last", DType::kBF16, {0, 0});
  writer.append("flag", std::span(one));
  for (size_t begin = 0, n = 1; begin < large; begin += n, n = std::min(2 * n + 1, large - begin)) {
    writer.append("wide",
                  std::span<const float>(values).subspan(begin, std::min(n, large - begin)));
  }
  writer.append("scalar", std::span<const float>(values).first(1));
  writer.append("empty", std::span<const int64_t>());
  writer.append("byte", std::span(one));
  writer.append("half", std::span<const float>(values).first(2));
  writer.append("half", std::span<const float>(values).subspan(2, 1));
  writer.commit();
  EXPECT_EQ(dir.entries(), 1u);

  const SafeTensors file = SafeTensors::open(dir / "a");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"empty.first", "flag", "wide", "scalar",
                                                    "empty", "byte", "half", "empty.last"}));
  EXPECT_EQ(file.info("wide").begin, 1u);
  std::vector<float> wide(large);
  file.read("wide", wide.data(), large);
  EXPECT_EQ(wide, values);
  std::vector<double> wide_double(large);
  file.read("wide", wide_double.data(), large);
  EXPECT_EQ(wide_double, std::vector<double>(values.begin(), values.end()));
  float scalar = 0;
  file.read("scalar", &scalar, 1);
  EXPECT_EQ(scalar, values[0]);
  std::array<float, 3> half{};
  file.read("half", half.data(), 3);
  EXPECT_EQ(half, (std::array<float, 3>{values[0], values[1], values[2]}));
  for (const char* name : {"empty.first", "empty", "empty.last"}) {
    EXPECT_TRUE(file.data(name).empty());
    file.read(name, static_cast<float*>(nullptr), 0);
  }
}

// However long the header is, so that weights can be used where they are.
TEST(SafeTensors, DataBeginsAtAMultipleOf64) {
  const TempDir dir;
  const std::vector<float> value = {1.5f};
  for (size_t length = 1; length <= 130; ++length) {
    const std::string name(length, 'n');
    SafeTensorsWriter writer(dir / "a");
    writer.declare(name, DType::kF32, {1});
    writer.append(name, std::span(value));
    writer.commit();
    EXPECT_EQ((std::filesystem::file_size(dir / "a") - sizeof(float)) % 64, 0u) << length;
    const SafeTensors file = SafeTensors::open(dir / "a");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.data(name).data()) % 64, 0u) << length;
    EXPECT_EQ(copy(file.data(name)), copy(bytes_of(value)));
  }
}

TEST(SafeTensors, MetadataAndNamesKeepTheirText) {
  const TempDir dir;
  const std::string odd = "quote\" back\\slash new\nline \xc3\xa4\xe2\x82\xac";
  SafeTensorsWriter writer(dir / "a");
  writer.set_metadata("format", "fw");
  writer.set_metadata("format", "fwpkm");  // the last one counts
  writer.set_metadata(odd, odd + odd);
  writer.declare(odd, DType::kU8, {1});
  writer.declare("", DType::kU8, {0});
  writer.append(odd, std::vector<int64_t>{7});
  writer.commit();
  SafeTensors file = SafeTensors::open(dir / "a");
  const SafeTensors moved = std::move(file);
  EXPECT_EQ(moved.metadata(),
            (std::map<std::string, std::string>{{"format", "fwpkm"}, {odd, odd + odd}}));
  EXPECT_TRUE(moved.has(odd));
  EXPECT_TRUE(moved.has(""));
  EXPECT_FALSE(moved.has("format"));
  EXPECT_EQ(moved.data(odd)[0], std::byte{7});
}

TEST(SafeTensors, FilesWithoutTensors) {
  const TempDir dir;
  SafeTensorsWriter(dir / "a").commit();
  EXPECT_TRUE(SafeTensors::open(dir / "a").tensors().empty());
  expect_error([&] { SafeTensors::open(dir / "a").info("x"); }, "has no tensor 'x'", "none at all");
  SafeTensorsWriter writer(dir / "b");
  writer.set_metadata("k", "v");
  writer.commit();
  EXPECT_EQ(SafeTensors::open(dir / "b").metadata().at("k"), "v");
}

TEST(SafeTensors, WriterOutputIsExactAndDeterministic) {
  const TempDir dir;
  const auto write = [&](const std::string& name) {
    SafeTensorsWriter writer(dir / name);
    writer.declare("b", DType::kI16, {2});
    writer.declare("a", DType::kU8, {1});
    writer.set_metadata("z", "1");
    writer.set_metadata("y", "2");
    writer.append("b", std::vector<int64_t>{1, -2});
    writer.append("a", std::vector<int64_t>{3});
    writer.commit();
    return read_text(dir / name);
  };
  const std::string text = write("first");
  EXPECT_EQ(text, write("second"));
  std::string header = R"({"__metadata__":{"y":"2","z":"1"},)"
                       R"("b":{"dtype":"I16","shape":[2],"data_offsets":[0,4]},)"
                       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
  header.resize((8 + header.size() + 63) / 64 * 64 - 8,
                ' ');  // the data begins at a multiple of 64
  EXPECT_EQ(text, safetensors_bytes(header, std::string("\x01\x00\xfe\xff\x03", 5)));
}

// Order in the header is free, and so is the white space; the data decides the order.
TEST(SafeTensors, ReadsHeadersOfOtherWriters) {
  const TempDir dir;
  write_safetensors(dir / "a",
                    "{ \"late\" : {\"data_offsets\":[4,6],\"shape\":[1],\"dtype\":\"BF16\"},\n"
                    " \"early\" : {\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]},"
                    " \"\\u00e4\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[4,4]}}   \n ",
                    std::string("\x05\0\0\0\x80\x3f", 6));
  const SafeTensors file = SafeTensors::open(dir / "a");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"early", "\xc3\xa4", "late"}));
  int64_t five = 0;
  file.read_as_i64("early", &five, 1);
  EXPECT_EQ(five, 5);
  double one = 0;
  file.read("late", &one, 1);
  EXPECT_EQ(one, 1.0);
}

TEST(SafeTensors, WrongRequestsAreNamed) {
  const TempDir dir;
  write_safetensors(dir / "a",
                    R"({"layers.0.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("norm":{"dtype":"BOOL","shape":[2],"data_offsets":[4,6]}})",
                    std::string("\0\0\0\0\1\2", 6));
  const SafeTensors file = SafeTensors::open(dir / "a");
  std::array<float, 2> floats{};
  std::array<int64_t, 2> integers{};
  expect_error([&] { file.info("layer.0.weights"); }, "[safetensors]", (dir / "a").string(),
               "'layer.0.weights'", "nearest name is 'layers.0.weight'");
  expect_error([&] { file.data("nrm"); }, "nearest name is 'norm'");
  expect_error([&] { file.read("nothing", floats.data(), 1); }, "has no tensor 'nothing'");
  expect_error([&] { file.read("layers.0.weight", floats.data(), 2); }, "has 1 elements",
               "shape [1]", "2 were asked for");
  expect_error([&] { file.read_as_i64("layers.0.weight", integers.data(), 1); }, "holds F32",
               "integers were asked for");
  expect_error([&] { file.read_as_i64("norm", integers.data(), 2); }, "element 1", "'norm'",
               "neither 0 nor 1");
}

TEST(SafeTensorsWriter, MisuseIsNamedAndLeavesNothing) {
  const TempDir dir;
  const std::vector<int64_t> ints = {1, 300, 3};
  const std::vector<float> floats = {1, 2, 3};
  // Declares an I8, b F32 and c U8 of 2 elements each, then calls.
  const auto expect = [&](auto call, auto... texts) {
    {
      SafeTensorsWriter writer(dir / "a");
      writer.declare("a", DType::kI8, {2});
      writer.declare("b", DType::kF32, {2});
      writer.declare("c", DType::kU8, {2});
      expect_error([&] { call(writer); }, "[safetensors]", texts...);
    }
    EXPECT_EQ(dir.entries(), 0u);
  };
  const auto two = std::span(ints).first(2);
  const auto ones = std::vector<int64_t>{1, 1};
  expect([&](auto& w) { w.declare("b", DType::kF32, {1}); }, "'b' is declared twice");
  expect([&](auto& w) { w.declare("__metadata__", DType::kF32, {1}); }, "reserved");
  expect([&](auto& w) { w.declare("d", DType::kF32, {-1}); }, "cannot have the shape [-1]");
  expect([&](auto& w) { w.declare("d", DType::kF32, {1LL << 62}); }, "cannot have the shape");
  expect([&](auto& w) { w.declare("d", DType::kF32, {1LL << 62, 0, 4}); }, "cannot have the shape");
  expect([&](auto& w) { w.declare("d", DType::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}); }, "at most 8");
  expect([&](auto& w) { w.declare("d", DType::kU8, {INT64_MAX}); }, "cannot have the shape");
  expect([&](auto& w) { w.declare("\xff", DType::kF32, {1}); }, "'?' is not valid UTF-8");
  expect([&](auto& w) { w.set_metadata("k", "\xc3"); }, "not valid UTF-8");
  expect([&](auto& w) { w.append("x", std::span(floats)); }, "'x' was not declared");
  expect([&](auto& w) { w.append("b", std::span(floats)); }, "for tensor 'b', but 'a' is not");
  expect([&](auto& w) { w.append("a", std::span(floats).first(2)); }, "declared I8",
         "floating-point numbers");
  expect([&](auto& w) { w.append("a", std::span(ints)); }, "too much data", "2 are left");
  expect([&](auto& w) { w.append("a", two); }, "300 does not fit tensor 'a', which is I8");
  expect(
      [&](auto& w) {
        w.append("a", std::span(ones));
        w.append("b", std::span(ones));
      },
      "declared F32", "integers");
  expect(
      [&](auto& w) {
        w.append("a", std::span(ones));
        w.append("a", std::span(ones).first(1));
      },
      "too much data", "'a'", "complete already");
  expect(
      [&](auto& w) {
        w.append("a", std::span(ones).first(1));
        w.declare("d", DType::kF32, {1});
      },
      "before the first append");
  expect(
      [&](auto& w) {
        w.append("a", std::span(ones));
        w.append_raw("b", std::as_bytes(std::span(floats)).first(6));
      },
      "not whole elements of 4 bytes");
  expect([&](auto& w) { w.commit(); }, "missing from tensor 'a'", "0 bytes of 12");
  expect(
      [&](auto& w) {
        w.append("a", std::span(ones));
        w.append("b", std::span(floats).first(1));
        w.commit();
      },
      "missing from tensor 'b'", "6 bytes of 12");
  expect(
      [&](auto& w) {
        error_of([&] { w.append("a", two); });
        w.commit();
      },
      "failed before");
}

TEST(SafeTensorsWriter, UnwritablePathsAreNamed) {
  const TempDir dir;
  expect_error([&] { SafeTensorsWriter(dir / "none" / "a").commit(); }, "[file] cannot create",
               "No such file");
  expect_error([&] { SafeTensorsWriter(dir.path()).commit(); }, "it is a directory");
}

}  // namespace
}  // namespace fwpkm
