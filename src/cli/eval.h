// What the evaluations share as commands.
#pragma once

#include <string>
#include <vector>

#include "cli/cli.h"
#include "eval/continual.h"
#include "eval/folder.h"
#include "eval/ppl.h"

namespace fwpkm::cli {

struct EvalArguments {
  std::string model, tokenizer, out;
  bool start_over = false;
};

// --model, --tokenizer, --out, --start-over.
void add_eval_options(CLI::App* sub, EvalArguments* a);
// A page of what lies in a folder with a result, unless there is none.
void write_page(const std::string& folder, const nlohmann::json& result, const Common& common);
// Writes result.json, makes the page where there is a folder, and emits the result.
void finish_eval(const Common& common, const EvalArguments& a, const EvalFolder* folder,
                 const nlohmann::json& result);

struct PplArguments {
  EvalArguments eval;
  std::string against;
  std::vector<std::string> data;
  std::string reset = "never", reset_mixers = "auto";
  int64_t segment = 0;
  PplOptions options;
};
int run_ppl(PplArguments a, const Common& common);

struct ContinualArguments {
  EvalArguments eval;
  std::string domains;
  std::vector<std::string> order;
  ContinualOptions options;
};
int run_continual(const ContinualArguments& a, const Common& common);

void add_eval_ppl(CLI::App* eval);
void add_eval_ablate(CLI::App* eval);
void add_eval_continual(CLI::App* eval);

}  // namespace fwpkm::cli
