// Files that must be refused: with an Error that names what is wrong, never a crash.
#include <gtest/gtest.h>

#include <random>

#include "safetensors_file.h"
#include "temp_dir.h"
#include "tensor/safetensors.h"

namespace fwpkm {
namespace {

constexpr const char* kTensor = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

class BadSafeTensors : public testing::Test {
 protected:
  template <typename... Texts>
  void expect_bad_bytes(const std::string& bytes, Texts... texts) {
    write_bytes(path_, bytes);
    expect_error([&] { SafeTensors::open(path_); }, texts...);
  }

  template <typename... Texts>
  void expect_bad(const std::string& header, size_t data_bytes, Texts... texts) {
    SCOPED_TRACE(header.substr(0, 200));
    expect_bad_bytes(safetensors_bytes(header, std::string(data_bytes, 'x')), "[safetensors]",
                     path_.string(), texts...);
  }

  // A tensor 't' with these fields and 8 bytes of data.
  template <typename... Texts>
  void expect_bad_tensor(const std::string& fields, Texts... texts) {
    expect_bad("{\"t\":{" + fields + "}}", 8, "'t'", texts...);
  }

  TempDir dir_;
  std::filesystem::path path_ = dir_ / "bad.safetensors";
};

TEST_F(BadSafeTensors, TheTemplatesAreGoodUnlessBroken) {
  write_safetensors(path_, std::string("{\"t\":{") + kTensor + "}}", std::string(8, 'x'));
  EXPECT_EQ(SafeTensors::open(path_).info("t").count(), 2u);
}

TEST_F(BadSafeTensors, NotAFile) {
  expect_error([&] { SafeTensors::open(path_); }, "[file]", "No such file");
  expect_error([&] { SafeTensors::open(dir_.path()); }, "directory");
  expect_bad_bytes("", "is empty");
}

TEST_F(BadSafeTensors, HeaderLength) {
  expect_bad_bytes("{}", "2 bytes are too few");
  expect_bad_bytes(length_bytes(0), "does not start with '{'");
  expect_bad_bytes(length_bytes(3) + "{}", "should have 3 bytes, but only 2 are left");
  expect_bad_bytes(length_bytes(100'000'000) + "{}", "only 2 are left");
  expect_bad_bytes(length_bytes(100'000'001) + "{}", "exceeds the limit");
  expect_bad_bytes(length_bytes(UINT64_MAX) + "{}", "18446744073709551615 bytes exceeds");
  expect_bad_bytes(length_bytes(UINT64_MAX - 7) + "{}", "exceeds the limit");
  expect_bad_bytes(length_bytes(1ULL << 63) + "{}", "exceeds the limit");
  expect_bad_bytes("a text file, not tensors", "exceeds the limit");
}

TEST_F(BadSafeTensors, NotJson) {
  expect_bad(" {}", 0, "does not start with '{'");
  expect_bad("[]", 0, "does not start with '{'");
  expect_bad("\xef\xbb\xbf{}", 0, "does not start with '{'");
  expect_bad("{", 0, "not valid JSON");
  expect_bad("{}}", 0, "not valid JSON");
  expect_bad("{} {}", 0, "not valid JSON");
  expect_bad("{'t':1}", 0, "not valid JSON");
  expect_bad("{\"t\":{},}", 0);
  expect_bad("{/* comment */}", 0, "not valid JSON");
  expect_bad(std::string("{}\0\0", 4), 0, "zero byte");
  expect_bad(std::string("{}\0garbage", 10), 0, "zero byte");
  expect_bad("{\"\xff\":{}}", 0, "not valid JSON", "UTF-8");
  expect_bad("{\"\xc3\":{}}", 0, "not valid JSON", "UTF-8");
  expect_bad("{\"\xed\xa0\x80\":{}}", 0, "not valid JSON", "UTF-8");  // a lone surrogate
  expect_bad("{\"\xc0\xaf\":{}}", 0, "not valid JSON", "UTF-8");      // an overlong form
  expect_bad("{\"\\ud800\":{}}", 0, "not valid JSON");
}

TEST_F(BadSafeTensors, MessagesStayShort) {
  write_safetensors(path_, "{\"" + std::string(1'000'000, 'n') + "\n", "");
  EXPECT_LT(error_of([&] { SafeTensors::open(path_); }).size(), 1000u);
  write_safetensors(path_, "{\"" + std::string(1'000'000, 'n') + "\":[]}", "");
  EXPECT_LT(error_of([&] { SafeTensors::open(path_); }).size(), 1000u);
  write_safetensors(path_, "{\"t\":{\"shape\":[" + std::string(1'000'000, '1') + "]}}", "");
  EXPECT_LT(error_of([&] { SafeTensors::open(path_); }).size(), 1000u);
}

TEST_F(BadSafeTensors, DeepNestingIsRefusedAtOnce) {
  const std::string deep(5'000'000, '[');
  std::string objects;
  for (int i = 0; i < 500'000; ++i) {
    objects += "{\"a\":";
  }
  expect_bad("{\"t\":" + deep, 0, "must be an object, but is an array");
  expect_bad("{\"t\":{\"shape\":" + deep, 0, "must hold non-negative integers");
  expect_bad("{\"t\":{\"dtype\":" + deep, 0, "must be a string");
  expect_bad("{\"__metadata__\":{\"a\":" + deep, 0, "must hold strings");
  expect_bad(objects, 0, "unknown field 'a'");
}

TEST_F(BadSafeTensors, DuplicateKeys) {
  const std::string t = std::string("\"t\":{") + kTensor + "}";
  expect_bad("{" + t + "," + t + "}", 8, "'t' is in the header twice");
  expect_bad("{" + t + ",\"\\u0074\":{}}", 8, "'t' is in the header twice");
  expect_bad(R"({"__metadata__":{},"__metadata__":{}})", 0, "twice");
  expect_bad(R"({"__metadata__":{"a":"1","a":"1"}})", 0, "'a' is in __metadata__ twice");
  expect_bad_tensor(R"("dtype":"F32","dtype":"F32")", "dtype twice");
  expect_bad_tensor(R"("shape":[],"shape":[])", "shape twice");
  expect_bad_tensor(R"("data_offsets":[0,8],"data_offsets":[0,8])", "data_offsets twice");
}

TEST_F(BadSafeTensors, WrongTypes) {
  for (const char* value : {"null", "true", "false", "1", "-1", "1.5", "\"s\"", "[]"}) {
    expect_bad(std::string("{\"t\":") + value + "}", 0, "tensor 't' must be an object");
    expect_bad(std::string("{\"__metadata__\":") + value + "}", 0,
               "__metadata__ must be an object");
  }
  for (const char* value : {"null", "true", "1", "-1", "1.5", "[]", "{}"}) {
    expect_bad(std::string("{\"__metadata__\":{\"k\":") + value + "}}", 0,
               "__metadata__ must hold strings, but 'k' is");
    expect_bad_tensor(std::string("\"dtype\":") + value, "dtype", "must be a string");
  }
  for (const char* field : {"shape", "data_offsets"}) {
    const std::string key = std::string("\"") + field + "\":";
    for (const char* value : {"null", "true", "1", "-1", "1.5", "\"s\"", "{}"}) {
      expect_bad_tensor(key + value, field, "must be an array of integers");
    }
    for (const char* value :
         {"null", "true", "-1", "1.5", "1.0", "1e2", "18446744073709551616", "\"1\"", "{}", "[]"}) {
      expect_bad_tensor(key + "[" + value + "]", field, "must hold non-negative integers");
    }
  }
  expect_bad_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1])",
                    "unknown field 'strides'");
}

TEST_F(BadSafeTensors, MissingFields) {
  expect_bad_tensor("", "has no dtype");
  expect_bad_tensor(R"("shape":[2],"data_offsets":[0,8])", "has no dtype");
  expect_bad_tensor(R"("dtype":"F32","data_offsets":[0,8])", "has no shape");
  expect_bad_tensor(R"("dtype":"F32","shape":[2])", "has no data_offsets");
}

TEST_F(BadSafeTensors, UnknownDtypes) {
  for (const char* type : {"F8_E4M3", "F8_E5M2", "U16", "U64", "C64", "f32", "", "F32 "}) {
    expect_bad_tensor(std::string("\"dtype\":\"") + type + R"(","shape":[2],"data_offsets":[0,8])",
                      std::string("'") + type + "'", "not supported");
  }
}

TEST_F(BadSafeTensors, Shapes) {
  const auto expect = [&](const std::string& shape, auto... texts) {
    expect_bad_tensor("\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[0,8]",
                      texts...);
  };
  expect("3", "is F32 [3] and needs 12 bytes, but has 8");
  expect("", "needs 4 bytes, but has 8");
  expect("0", "needs 0 bytes, but has 8");
  expect("-2", "non-negative integers, but holds the number -2");
  expect("4611686018427387904,4611686018427387904", "too large");
  expect("4611686018427387904", "too large");  // fits in elements, not in bytes
  expect("4611686018427387904,2,2", "too large");
  expect("4611686018427387904,4,0", "too large");
  expect("0,4611686018427387904,4", "too large");
  expect("9223372036854775808", "too large");
  expect("18446744073709551615", "too large");
  expect("1,1,1,1,1,1,1,1,2", "more than 8 dimensions");
}

TEST_F(BadSafeTensors, Offsets) {
  const auto expect = [&](const std::string& offsets, auto... texts) {
    expect_bad_tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" + offsets + "]",
                      texts...);
  };
  expect("", "must hold 2 numbers");
  expect("0", "must hold 2 numbers");
  expect("0,8,8", "must hold 2 numbers");
  expect("8,0", "begins at byte 8, but ends at byte 0");
  expect("0,4", "needs 8 bytes, but has 4");
  expect("1,9", "ends at byte 9, but there are only 8");
  expect("18446744073709551608,18446744073709551615", "only 8 bytes of data");
  expect("-8,0", "non-negative integers, but holds the number -8");
}

TEST_F(BadSafeTensors, Coverage) {
  const auto tensor = [](const std::string& name, int begin, int end) {
    return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  const auto file = [](const std::string& a, const std::string& b) {
    return "{" + a + "," + b + "}";
  };
  expect_bad(file(tensor("a", 0, 5), tensor("b", 4, 8)), 8, "'a' (bytes 0 to 5)",
             "'b' (bytes 4 to 8)", "overlap");
  expect_bad(file(tensor("b", 0, 8), tensor("a", 0, 8)), 8, "'a'", "'b'", "overlap");
  expect_bad(file(tensor("a", 0, 8), tensor("b", 2, 4)), 8, "'a'", "'b'", "overlap");
  expect_bad(file(tensor("a", 0, 8), tensor("empty", 4, 4)), 8, "'a'", "'empty'", "overlap");
  expect_bad(file(tensor("a", 0, 3), tensor("b", 4, 8)), 8, "bytes 3 to 4", "'a'", "'b'");
  expect_bad("{" + tensor("a", 1, 8) + "}", 8, "bytes 0 to 1", "the header", "'a'");
  expect_bad(file(tensor("a", 0, 3), tensor("b", 3, 7)), 8, "1 bytes follow 'b'");
  expect_bad("{}", 3, "3 bytes follow the header");
}

// What open() lets through must hang together, down to the last byte.
void expect_consistent(const SafeTensors& file, uint64_t file_bytes) {
  uint64_t end = 0;
  for (const SafeTensors::Info& info : file.tensors()) {
    ASSERT_TRUE(file.has(info.name));
    ASSERT_EQ(info.begin, end);
    end = info.end;
    uint64_t bytes = 0;
    ASSERT_TRUE(checked_bytes(info.shape, info.dtype, &bytes));
    ASSERT_EQ(bytes, info.end - info.begin);
    ASSERT_LE(info.end, file_bytes);
    std::vector<double> values(info.count());
    try {
      file.read(info.name, values.data(), values.size());
    } catch (const Error&) {
      ASSERT_EQ(info.dtype, DType::kBool);
    }
  }
}

class Corruptions : public BadSafeTensors {
 protected:
  Corruptions() {
    SafeTensorsWriter writer(dir_ / "good");
    writer.set_metadata("format", "fwpkm");
    writer.declare("a.weight", DType::kF32, {2, 3});
    writer.declare("b", DType::kBool, {3});
    writer.declare("c", DType::kI64, {0, 7});
    writer.declare("d", DType::kBF16, {1});
    writer.append("a.weight", std::vector<float>{1, 2, 3, 4, 5, 6});
    writer.append("b", std::vector<int64_t>{1, 0, 1});
    writer.append("d", std::vector<double>{0.5});
    writer.commit();
    good_ = read_text(dir_ / "good");
  }

  // True when the bytes could be opened.
  bool check(const std::string& bytes) {
    write_bytes(path_, bytes);
    try {
      expect_consistent(SafeTensors::open(path_), bytes.size());
      return true;
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 2000u);
      return false;
    }
  }

  std::string good_;
};

TEST_F(Corruptions, EveryTruncationIsRefused) {
  ASSERT_TRUE(check(good_));
  for (size_t size = 0; size < good_.size(); ++size) {
    EXPECT_FALSE(check(good_.substr(0, size))) << size << " bytes of " << good_.size();
  }
  EXPECT_FALSE(check(good_ + "x"));
}

TEST_F(Corruptions, EverySingleByteOfTheHeader) {
  const size_t header_end = good_.size() - 29;
  for (size_t i = 0; i < header_end; ++i) {
    std::string bad = good_;
    for (const unsigned value : {0x00u, 0xffu, 0x20u, 0x22u, 0x2cu, 0x2du, 0x30u, 0x39u, 0x5bu,
                                 0x5du, 0x7bu, 0x7du, 0x80u}) {
      bad[i] = static_cast<char>(value);
      check(bad);
    }
    for (int bit = 0; bit < 8; ++bit) {
      bad[i] = static_cast<char>(good_[i] ^ (1 << bit));
      check(bad);
    }
    if (HasFatalFailure()) {
      FAIL() << "at byte " << i;
    }
  }
}

TEST_F(Corruptions, RandomEdits) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  const std::vector<std::string> pieces = {"{",    "}",          "[",  "]",        ",",   ":",
                                           "\"",   "0",          "-",  "99999999", "1e9", "\\u0000",
                                           "null", "\"shape\":", "[[", "\"a\":{}"};
  for (int round = 0; round < 3000; ++round) {
    std::string header = good_.substr(8, good_.size() - 8 - 29);
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(header.size());
      header.replace(at, below(4), pieces[below(pieces.size())]);
    }
    check(safetensors_bytes(header, good_.substr(good_.size() - 29)));
    ASSERT_FALSE(HasFatalFailure()) << header;
  }
}

}  // namespace
}  // namespace fwpkm
