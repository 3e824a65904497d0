#include "check/check.h"

#include <memory>

#include "base/error.h"
#include "cli/cli.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  std::string op, only;
  bool grad = false, perf = false, support = false;
  uint64_t seed = 1;
};

std::string replay(const CheckResult& r, const Common& common, uint64_t seed) {
  return fmt::format("fwpkm check {} --case '{}'{} --device {} --seed {}", r.op, r.name,
                     r.kind == "grad" ? " --grad" : "", common.device, seed);
}

int run(const Arguments& a, const Common& common) {
  if (a.support) {
    say(common, support_table());
    nlohmann::json rows = nlohmann::json::array();
    for (const OpInfo& info : all_ops()) {
      rows.push_back({{"op", info.op->name},
                      {"reference", info.op->reference_f64.forward != nullptr},
                      {"cpu", info.op->cpu.forward != nullptr},
                      {"cuda", info.op->cuda.forward != nullptr}});
    }
    emit(common, {{"ops", rows}});
    return 0;
  }
  CheckOptions options;
  options.op = a.op;
  options.only = a.only;
  options.device = common.parsed_device(DType::kF32);
  options.seed = a.seed;
  const std::vector<CheckResult> results = a.perf   ? check_speed(options)
                                           : a.grad ? check_gradients(options)
                                                    : check_values(options);
  require(!results.empty(), "check", "no case {}was found; `fwpkm check OP` lists an op's cases",
          a.only.empty() ? "" : fmt::format("named '{}' ", a.only));

  std::vector<std::vector<std::string>> rows;
  if (a.perf) {
    rows.push_back({"op", "case", "forward ms", "backward ms", "GFLOP/s", "GB/s"});
  } else {
    rows.push_back({"op", "case", "error", "allowed", ""});
  }
  nlohmann::json json = nlohmann::json::array();
  int failures = 0;
  std::string complaints;
  for (const CheckResult& r : results) {
    if (a.perf && r.ok) {
      rows.push_back({r.op, r.name, fmt::format("{:.3f}", r.forward_ms),
                      fmt::format("{:.3f}", r.backward_ms), fmt::format("{:.1f}", r.gflops),
                      fmt::format("{:.1f}", r.gbps)});
    } else {
      rows.push_back({r.op, r.name, fmt::format("{:.2e}", r.error), fmt::format("{:.2e}", r.limit),
                      r.ok ? "ok" : "FAILED"});
    }
    if (!r.ok) {
      ++failures;
      complaints += fmt::format("FAILED {} {}: {}\n  replay: {}\n", r.op, r.name, r.detail,
                                replay(r, common, a.seed));
    }
    json.push_back({{"op", r.op},
                    {"case", r.name},
                    {"kind", r.kind},
                    {"ok", r.ok},
                    {"error", r.error},
                    {"limit", r.limit},
                    {"detail", r.detail},
                    {"forward_ms", r.forward_ms},
                    {"backward_ms", r.backward_ms},
                    {"gflops", r.gflops},
                    {"gbps", r.gbps}});
  }
  say(common, table(rows) + complaints +
                  fmt::format("{} passed, {} failed\n", results.size() - failures, failures));
  emit(common, {{"results", json}, {"failed", failures}});
  return failures == 0 ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand(
      "check",
      "Check every op: its kernel against the scalar reference in double, within an error budget");
  sub->add_option("op", a->op, "Check this op only")->type_name("OP");
  sub->add_option("--case", a->only, "Check this case only")->type_name("NAME");
  sub->add_option("--seed", a->seed, "Seed of the inputs")->capture_default_str();
  auto* grad = sub->add_flag("--grad", a->grad,
                             "Check the reference's gradients against central differences");
  auto* perf = sub->add_flag("--perf", a->perf, "Time the kernels (checked by a run without this)");
  auto* support = sub->add_flag("--support", a->support, "Print which op has kernels where");
  grad->excludes(perf)->excludes(support);
  perf->excludes(support);
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
