// Looking into memories, as commands.
#pragma once

#include <string>

#include "cli/cli.h"

namespace fwpkm::cli {

// What `inspect slots` is asked with a prompt: which slots each token is made from.
struct ProbeArguments {
  std::string session, model, tokenizer;
  std::string read, prompt, expect, page;
  int64_t readings = 1, tokens = 10, top = 20;
};
void add_probe_options(CLI::App* slots, ProbeArguments* a);
int run_probe(const ProbeArguments& a, const Common& common);

void add_inspect_gates(CLI::App* inspect);

}  // namespace fwpkm::cli
