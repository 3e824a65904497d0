#include <memory>

#include "cli/cli.h"
#include "report/gather.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  std::vector<std::string> folders;
  std::string out = "report.html";
  std::string title = "fwpkm report";
};

std::string counted(size_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

int run(const Arguments& a, const Common& common) {
  const report::Gathered gathered = report::gather(a.folders);
  nlohmann::json runs = nlohmann::json::array(), results = nlohmann::json::array();
  for (const report::TrainingRun& run : gathered.runs) {
    runs.push_back({{"label", run.label}, {"folder", run.folder.string()}});
  }
  for (const auto& [kind, list] : gathered.results) {
    for (const report::Result& result : list) {
      results.push_back(
          {{"kind", kind}, {"label", result.label}, {"folder", result.folder.string()}});
    }
  }
  const std::string what = counted(runs.size(), "training run", "training runs") + ", " +
                           counted(results.size(), "evaluation", "evaluations");
  report::Page page(a.title, what);
  report::draw(&page, gathered);
  page.write(a.out);
  const std::string path = std::filesystem::absolute(a.out).lexically_normal().string();
  say(common, fmt::format("{}: {}\n", what, path));
  emit(common, {{"page", path}, {"runs", runs}, {"results", results}});
  return 0;
}

}  // namespace

void add_report(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand(
      "report", "A page with training curves and evaluations, side by side: one HTML file");
  sub->add_option("folders", a->folders,
                  "Training runs, results of evaluations, or folders that hold some")
      ->type_name("DIR...")
      ->required();
  sub->add_option("--out", a->out, "The file to write")->type_name("PATH")->capture_default_str();
  sub->add_option("--title", a->title, "The page's title")->capture_default_str();
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
