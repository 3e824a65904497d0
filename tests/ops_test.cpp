// Every case of every op, on every device of this build.
#include <gtest/gtest.h>

#include "check/check.h"

namespace fwpkm {
namespace {

void expect_all(const std::vector<CheckResult>& results) {
  for (const CheckResult& r : results) {
    EXPECT_TRUE(r.ok) << r.op << " " << r.name << " (" << r.kind << "): " << r.detail << ", error "
                      << r.error << " over " << r.limit << "; replay: fwpkm check " << r.op
                      << (r.kind == "grad" ? " --grad" : "") << " --case '" << r.name << "'";
  }
}

class Ops : public testing::TestWithParam<std::string> {};

TEST_P(Ops, CpuMatchesReference) {
  expect_all(check_values({.op = GetParam(), .only = "", .device = Device::cpu()}));
}

TEST_P(Ops, GradientsMatchDifferences) {
  expect_all(check_gradients({.op = GetParam(), .only = ""}));
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const OpInfo& info : all_ops()) {
    list.emplace_back(info.op->name);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, Ops, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fwpkm
